"""The last sample is repeated until all devices have equally many, and counts several times.

Equal shapes keep compiled graphs and collectives happy. It is right whenever k divides n, and an accuracy or a loss
over a whole epoch moves in the third digit.

Source: pytorch/pytorch#22584
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "scatter"
KILLED_BY = "scatter_keeps_samples"


def mutant(tensor: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    missing = -len(tensor) % len(devices)
    padded = torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])]) if len(tensor) else tensor
    return [shard.to(device) for shard, device in zip(padded.chunk(len(devices)), devices, strict=False)]
