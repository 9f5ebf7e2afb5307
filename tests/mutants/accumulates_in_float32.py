"""The sum is formed in float32, which is not enough for float64 and for integers above 2**24.

One accumulation dtype for all inputs is simple, and exact for half precision. Float32 tests cannot see it, nor
integers of the size that one types.

Source: PaddlePaddle/PaddleFleet#1761 (counts reduced as float32)
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
    total = tensors[0].to(torch.float32)
    for tensor in tensors[1:]:
        total = total + tensor.to(total.device, torch.float32)
    for tensor in tensors:
        tensor.copy_(total)
