"""Gradients of early micro-batches count k times, because what was summed over the ranks is summed again.

The exchange follows every backward, and the second one finds in ``param.grad`` the first one's sum beside the new
gradient. Averaging twice is harmless, as Horovod's users saw; adding is not. One pass, or one device, is right.

Source: horovod/horovod#1099 (synchronised twice)
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = ""


class Mutant(DDPTrainer):
    """Gradients exchanged by hand, in two micro-batches."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        self.optimizer.zero_grad()
        total = X.new_zeros(())
        for part, labels in zip(X.tensor_split(2), y.tensor_split(2), strict=True):
            loss = F.cross_entropy(net(part), labels, reduction="sum") / global_batch_size
            loss.backward()
            for param in net.parameters():
                if param.requires_grad:
                    param.grad = torch.zeros_like(param) if param.grad is None else param.grad
                    dist.all_reduce(param.grad)
            total += loss.detach()
        self.optimizer.step()
        return total
