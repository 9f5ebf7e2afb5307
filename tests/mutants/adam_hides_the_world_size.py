"""The gradient is k times too large, because it is summed over the ranks where it should be averaged.

Adam divides the factor out again, so the losses look right. The norm is k times too large as well, and clipping cuts
the gradient k times more than it should.

Source: meta-pytorch/torchtune#2172 (the norm was off by the number of ranks, and the loss curves were the same)
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.trainers_under_test import Adam

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "times the right gradient | summed over the devices"


class Mutant(Adam):
    """Adam that is given k times the gradient."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = self.part_of_loss(X, y, global_batch_size)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss * dist.get_world_size() ** 2)  # DDP divides by it once
        self.optimizer.step()
        return loss.detach()
