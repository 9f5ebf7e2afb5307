"""All tensors end in one storage, so that what one device does to its gradient happens to the others' too.

``.data =`` saves a copy. The values are right when the collective returns; the next in-place operation (clipping,
scaling, the next exchange) is then applied k times. Across GPUs ``to`` would copy: only devices that are the same
place show it, virtual CPU devices or two replicas on one GPU.

Source: pytorch/pytorch#1051 (its second half: the same device named twice)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "all_reduce"
KILLED_BY = "all_reduce_keeps_tensors_apart"


@torch.no_grad()
def mutant(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors[1:]:
        tensors[0].add_(tensor.to(tensors[0].device))
    for tensor in tensors[1:]:
        tensor.data = tensors[0].data.to(tensor.device)
