"""The gradient of a weight that two modules share is exchanged once for each of them, and comes out k times too large.

The loop walks over the modules and not over the parameters, so it meets the shared tensor twice; the second all-reduce
adds up k equal sums. Nets without tied weights are right, and one device is.

Source: pytorch/pytorch#132027
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
    """Gradients exchanged by hand, module by module."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        loss.backward()
        for module in net.modules():
            for param in module.parameters(recurse=False):
                if param.requires_grad:
                    param.grad = torch.zeros_like(param) if param.grad is None else param.grad
                    dist.all_reduce(param.grad)
        self.optimizer.step()
        return loss.detach()
