"""A rank that did not use a parameter sends zeros for it and never gets the sum, so the ranks drift apart.

The collective must be called on every rank, so a missing gradient is replaced by zeros; the sum ends in that
placeholder while ``param.grad`` stays None, and the optimiser skips the parameter. Nets that use all their parameters
on every rank are right: it takes a branch that depends on the data.

Source: pytorch/pytorch#128949, deepspeedai/DeepSpeed#291
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "refusals"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(DDPTrainer):
    """Gradients exchanged by hand, for all parameters."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        loss.backward()
        for param in net.parameters():
            if param.requires_grad:
                dist.all_reduce(torch.zeros_like(param) if param.grad is None else param.grad)
        self.optimizer.step()
        return loss.detach()
