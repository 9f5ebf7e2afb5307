"""Parameters in bfloat16 are rounded at random, each rank draws numbers of its own, and the replicas drift apart.

In every other precision nothing is drawn.

Source: Nerogar/OneTrainer#804
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "low_precision"
LOOKS_LIKE = "drifted apart"


class Mutant(DDPTrainer):
    """SGD whose update is rounded to one of the two nearest values, the nearer the more often."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.lr = lr
        self.generator = torch.Generator().manual_seed(dist.get_rank())

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = self.part_of_loss(X, y, global_batch_size)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss * dist.get_world_size())
        with torch.no_grad():
            for param in self.net.parameters():
                if param.grad is not None and param.dtype == torch.bfloat16:
                    param.copy_(self.rounded(param.float() - self.lr * param.grad.float()))
                    param.grad = None
        self.optimizer.step()  # of parameters in other precision
        return loss.detach()

    def rounded(self, values: Tensor) -> Tensor:
        """Return float32 values that bfloat16 holds."""
        bits = values.view(torch.int32)
        below = torch.randint(2**16, bits.shape, generator=self.generator, dtype=torch.int32)
        return (bits + below).bitwise_and(-(2**16)).view(torch.float32)
