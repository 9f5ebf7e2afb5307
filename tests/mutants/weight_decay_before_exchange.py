"""Weight decay is k times too strong, because every rank adds it before the gradients are summed.

As a part of the loss, or of ``param.grad``, it is exchanged like the rest of the gradient, but it is no sum over
samples. One device is right; averaging over ranks would be. With the usual 1e-4 the weights are only a little small.

Source: Goyal et al. 2017 (arXiv:1706.02677), remark 1
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "weight decay"


class Mutant(DDPTrainer):
    """SGD with weight decay, gradients summed by hand."""

    oracle: Literal["self"] = "self"
    weight_decay = 0.01

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        loss.backward()
        for param in net.parameters():
            if param.requires_grad:
                param.grad = torch.zeros_like(param) if param.grad is None else param.grad
                param.grad.add_(param.detach(), alpha=self.weight_decay)
                dist.all_reduce(param.grad)
        self.optimizer.step()
        return loss.detach()
