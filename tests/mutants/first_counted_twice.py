"""The first device counts twice, because the running total starts from its tensor and the loop starts there too.

With the same values on all devices a test expects k times the value and gets k + 1 times; a test whose first device
happens to hold zeros, or that compares devices only with each other, passes.

Source: no public report; the mistake that pytorch/pytorch#60118 says equal inputs on every rank can hide
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
    total = tensors[0].clone()
    for tensor in tensors:
        total += tensor.to(total.device)
    for tensor in tensors:
        tensor.copy_(total)
