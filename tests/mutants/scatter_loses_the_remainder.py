"""Up to k - 1 samples of every minibatch are never seen, because a shard has n // k of them.

Equal shards by floor division, and nobody asks for the rest. It is right whenever k divides n: for batches of 256 on
2, 4 or 8 devices that is every batch but the last of the epoch.

Source: lhotse-speech/lhotse#695 (the sampler dropped the remainder of the data for world sizes above 1)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "scatter"
KILLED_BY = "scatter_keeps_samples"


def mutant(tensor: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    size = len(tensor) // len(devices)
    return [tensor[i * size : (i + 1) * size].to(device) for i, device in enumerate(devices)]
