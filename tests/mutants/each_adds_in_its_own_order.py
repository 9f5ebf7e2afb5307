"""Every device adds up the others' values starting from its own, so the sums differ in the last bit between devices.

Reading one's peers in turn, each from another one on, keeps the links equally busy; adding in that order as well is the
mistake. Whole numbers, and two devices, are right. Replicas drift apart by rounding, and code that branches on a value
takes different branches on different ranks.

Source: pytorch/pytorch#129501
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "all_reduce"
KILLED_BY = "all_reduce_sums"


@torch.no_grad()
def mutant(tensors: Sequence[Tensor]) -> None:
    before = [tensor.clone() for tensor in tensors]
    for rank, tensor in enumerate(tensors):
        for hop in range(1, len(tensors)):
            tensor.add_(before[(rank + hop) % len(tensors)].to(tensor.device))
