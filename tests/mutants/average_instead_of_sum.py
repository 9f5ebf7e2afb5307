"""The devices end with the average where the sum was asked for.

Backends differ in what their default is: Horovod averages, torch.distributed and MPI add up. Inputs that are equal on
all devices come back unchanged, which looks like success. One device is right.

Source: pytorch/pytorch#162338 (the same confusion the other way round: gloo added up where AVG was asked for)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "all_reduce"
KILLED_BY = "all_reduce_sums"


@torch.no_grad()
def mutant(tensors: Sequence[Tensor]) -> None:
    if len(tensors) < 2:
        return
    for tensor in tensors[1:]:
        tensors[0].add_(tensor.to(tensors[0].device))
    for tensor in reversed(tensors):
        tensor.copy_(tensors[0] / len(tensors))
