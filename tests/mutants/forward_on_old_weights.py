"""On several devices the forward uses the weights of the step before, because new ones have not arrived yet.

The gather of the updated weights overlaps with the next forward, which does not wait for it. Training goes on with
gradients of weights that are one step old.

Source: NVIDIA/Megatron-LM#950, NVIDIA/Megatron-LM#6336
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tests.right.by_hand import ByHand

KIND = "trainer"
KILLED_BY = "trajectory"
LOOKS_LIKE = "old weights | stale"


class Mutant(ByHand):
    """`ByHand` whose gradients are those of the weights before the last update."""

    old: list[Tensor] | None = None

    def backward(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        now = [param.detach().clone() for param in self.trained]
        if self.old is not None and dist.get_world_size() > 1:
            self.put(self.old)
        loss = super().backward(X, y, global_batch_size)
        self.put(now)
        self.old = now
        return loss

    @torch.no_grad()
    def put(self, values: list[Tensor]) -> None:
        """Give these weights to the net."""
        for param, value in zip(self.trained, values, strict=True):
            param.copy_(value)
