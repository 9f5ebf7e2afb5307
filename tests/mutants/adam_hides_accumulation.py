"""The gradients of micro-batches are added up and never divided by their number, on one device as on several.

Adam divides the factor out again. What k devices compute is what one computes, so only the same update written plainly
shows the error.

Source: karpathy/nanoGPT#168
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.trainers_under_test import Adam

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = "times the right gradient"
MICRO_BATCHES = 2


class Mutant(Adam):
    """Adam on micro-batches, each of which counts as a whole minibatch."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        pieces = zip(X.tensor_split(MICRO_BATCHES), y.tensor_split(MICRO_BATCHES), strict=True)
        return self.update([self.part_of_loss(*piece, global_batch_size) for piece in pieces], MICRO_BATCHES)

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take one step with the whole minibatch at once."""
        return self.update([self.part_of_loss(X, y, global_batch_size)], 1)

    def update(self, losses: list[Tensor], factor: int) -> Tensor:
        """Update with the summed losses of this rank; return their sum."""
        total = torch.stack(losses).sum()
        self.optimizer.zero_grad()
        torch.autograd.backward(total * factor * dist.get_world_size())
        self.optimizer.step()
        return total.detach()
