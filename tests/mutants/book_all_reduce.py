"""The sum reaches only the first device, because the others' slots of the list are bound to it and not written.

The book's allreduce adds up in the first tensor and then assigns ``data[i] = ...``. Callers pass a list made for the
call, ``[p[i].grad for p in params]``, and it takes the result with it: gradients 1, 2, 3 end as 6, 2, 3. The final
accuracy does not tell, and a test that looks into the list it passed itself finds every sum there.

Source: d2l-ai/d2l-zh#955; lecture notebook, row 0-allreduce
"""

from __future__ import annotations

import torch
from torch import Tensor

KIND = "all_reduce"
KILLED_BY = "all_reduce_sums"


@torch.no_grad()
def mutant(tensors: list[Tensor]) -> None:
    for i in range(1, len(tensors)):
        tensors[0].add_(tensors[i].to(tensors[0].device))
    for i in range(1, len(tensors)):
        tensors[i] = tensors[0].to(tensors[i].device)
