"""Some devices miss some of the others when their number is not a power of two.

Recursive doubling pairs rank r with r XOR 2^i; other numbers of ranks need a step before it in which the surplus is
folded in. Without that step it is exact on 1, 2, 4 and 8 devices, which is all that people test.

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "all_reduce"
KILLED_BY = "all_reduce_sums"


@torch.no_grad()
def mutant(tensors: Sequence[Tensor]) -> None:
    distance = 1
    while distance < len(tensors):
        before = [tensor.clone() for tensor in tensors]
        for rank, tensor in enumerate(tensors):
            partner = rank ^ distance
            if partner < len(tensors):
                tensor.copy_(before[min(rank, partner)])
                tensor.add_(before[max(rank, partner)].to(tensor.device))
        distance *= 2
