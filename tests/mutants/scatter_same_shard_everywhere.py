"""Every device gets the first device's samples, and the rest of the minibatch is never seen.

A sampler that is not told its rank, or finds rank 0 in every process, yields the same everywhere. Loss curves look
fine and replicas agree to the bit; the run does the work of one device k times. On one device it is right.

Source: k2-fsa/icefall#1616, PatrickHua/SimSiam#16
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "scatter"
KILLED_BY = "scatter_keeps_samples"


def mutant(tensor: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    shards = tensor.chunk(len(devices))
    return [shards[0].to(device) for device, _ in zip(devices, shards, strict=False)]
