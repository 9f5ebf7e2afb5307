"""The book's all-reduce: sum all tensors on the first device, then copy the sum back to the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.all_reduce.check import check
from reference.all_reduce.traffic import send_


@torch.no_grad()
def naive_(tensors: Sequence[Tensor]) -> None:
    """Replace every tensor's values by the sum over all of them, added in the order of the list.

    The first device receives and sends (k - 1) times the tensor, the others send and receive it once. The book's code
    assigns to the list's elements instead of writing into the tensors, so with a temporary list the result is lost.
    """
    check(tensors)
    for rank in range(1, len(tensors)):
        send_(tensors[rank], tensors[0], source=rank, target=0, accumulate=True)
    for rank in range(1, len(tensors)):
        send_(tensors[0], tensors[rank], source=0, target=rank)
