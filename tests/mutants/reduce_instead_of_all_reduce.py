"""Only the first device gets the sum, and the others are left with the partial sums of the way there.

A tree that reduces in place and never broadcasts. gloo's reduce left such partial sums on the other ranks too; nobody
looks at them as long as only rank 0 prints and saves. One device is right, and so is the first of any number.

Source: pytorch/pytorch#21480, pytorch/pytorch#76527
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
        for i in range(0, len(tensors) - distance, 2 * distance):
            tensors[i].add_(tensors[i + distance].to(tensors[i].device))
        distance *= 2
