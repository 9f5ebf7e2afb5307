"""Biases and other parameters with one axis keep each rank's own gradient.

Parameters are grouped by their number of axes, for weight decay or for sharding, and only one group gets the exchange.
The weights agree, the loss goes down, and the biases are small. Nets without biases or normalisation are right.

Source: bigcode-project/Megatron-LM#12, ooples/AiDotNet#1877
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "replicas"
LOOKS_LIKE = "one-dimensional | missing exchange | drifted apart"


class Mutant(DDPTrainer):
    """Gradients exchanged by hand, matrix by matrix."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        loss.backward()
        for param in net.parameters():
            if param.requires_grad and param.ndim > 1:
                param.grad = torch.zeros_like(param) if param.grad is None else param.grad
                dist.all_reduce(param.grad)
        self.optimizer.step()
        return loss.detach()
