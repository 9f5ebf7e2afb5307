"""Shards have other sizes than torch's own: as equal as possible instead of equal but for the last.

numpy's array_split and MXNet's newer rule give 10 samples to 3 devices as 4, 3, 3; nn.DataParallel gives 4, 4, 2, and
8 devices get 5 shards. Nothing is lost, the gradient is right, but normalisation and dropout are per shard: a
comparison with nn.DataParallel or a replayed run disagrees. It is right whenever k divides n.

Source: Gluon chapter, row 3-split; pytorch/pytorch#15161 (a user who expected one chunk for every device)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "scatter"
KILLED_BY = "scatter_follows_rule"


def mutant(tensor: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    return [shard.to(device) for shard, device in zip(tensor.tensor_split(len(devices)), devices, strict=True)]
