"""A tensor that is not contiguous keeps its own values, because the sum went into a contiguous copy of it.

``contiguous`` returns the tensor itself or a copy, depending on its strides, and the collective works in place on what
it returned. Gradients are contiguous nearly always; those of transposed or channels-last weights need not be.

Source: NVIDIA/Megatron-LM#5337, pytorch/pytorch#192920
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "all_reduce"
KILLED_BY = "all_reduce_sums"


@torch.no_grad()
def mutant(tensors: Sequence[Tensor]) -> None:
    buffers = [tensor.contiguous() for tensor in tensors]
    for buffer in buffers[1:]:
        buffers[0].add_(buffer.to(buffers[0].device))
    for buffer in buffers[1:]:
        buffer.copy_(buffers[0])
