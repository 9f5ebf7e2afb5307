"""Later devices add up what earlier ones have already reduced, because the inputs were not kept.

"Everyone adds everyone else" in place: when device 1 reads device 0, it finds the sum there. The first device is right,
which is where one looks, and so are two devices of which the second has nothing to add.

Source: no public report; the hazard that nccl-tests' in-place runs are there for (NVIDIA/nccl-tests, README)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "all_reduce"
KILLED_BY = "all_reduce_sums"


@torch.no_grad()
def mutant(tensors: Sequence[Tensor]) -> None:
    for rank, tensor in enumerate(tensors):
        for other, theirs in enumerate(tensors):
            if other != rank:
                tensor.add_(theirs.to(tensor.device))
