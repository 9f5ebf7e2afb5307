"""Samples are dealt out in turn, so that gathered outputs no longer stand in the order of the inputs.

``tensor[rank::world_size]`` is what DistributedSampler does with indices, where the order does not matter. Here the
outputs are concatenated again. Sums and means over the batch are right, and so is everything that is compared with
labels scattered in the same way.

Source: pytorch/pytorch#12474 (where the sampler went from blocks to strides)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "scatter"
KILLED_BY = "scatter_keeps_samples"


def mutant(tensor: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    used = min(len(tensor), len(devices)) or len(devices)
    return [tensor[i::used].to(device) for i, device in enumerate(devices[:used])]
