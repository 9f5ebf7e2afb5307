"""The step is k times too large: the ranks' mean gradients are added up and not averaged.

``all_reduce`` adds by default, and gloo added where averaging was asked for. It is right on one device. Training with
few devices profits from the larger step or does not mind; with many it diverges, and lr is blamed.

Source: tensorflow/benchmarks#466, pytorch/pytorch#162338
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "times the right gradient | summed over the devices"


class Mutant(DDPTrainer):
    """Gradients exchanged by hand after the backward."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        (loss * dist.get_world_size()).backward()
        for param in net.parameters():
            if param.requires_grad:
                param.grad = torch.zeros_like(param) if param.grad is None else param.grad
                dist.all_reduce(param.grad)
        self.optimizer.step()
        return loss.detach()
