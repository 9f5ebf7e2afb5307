"""Integer sums wrap around, because 64-bit counts are reduced in 32 bits.

Nothing handles overflow in a reduction: 2**31 comes back negative. Token and sample counters grow that large only
after days of training, and floating-point inputs are not touched.

Source: NVIDIA/nccl#422, MFlowCode/MFC#1605
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
    wide = tensors[0].dtype == torch.int64
    total = tensors[0].to(torch.int32) if wide else tensors[0].clone()
    for tensor in tensors[1:]:
        total = total + tensor.to(total.device, total.dtype)
    for tensor in tensors:
        tensor.copy_(total)
