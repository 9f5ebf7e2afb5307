"""The gradient that comes back through a gather is summed over the ranks, although each had all of it.

It comes out k times too large. Every rank computes the loss of all samples from gathered outputs, so each has the
complete derivative of its own. The gather's backward sums those of all ranks, which is right only where each has a part
of the loss.

Source: facebookresearch/fairchem#1067
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.step_trainers import Gather, Gathering

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "times the right gradient | summed over the devices"


class Mutant(Gathering):
    """`Gathering` by a gather whose backward is an all_reduce."""

    def gather(self, part: Tensor, n: int, mine: slice) -> Tensor:
        gathered: Tensor = Summing.apply(part, n, mine)
        return gathered


class Summing(Gather):
    """`Gather` with the backward of a sum."""

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        total = grad.contiguous()
        dist.all_reduce(total)
        return Gather.backward(ctx, total)
