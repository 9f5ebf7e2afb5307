"""Every rank clips the gradient of its own shard, and the sum is neither clipped nor in the right direction.

Clipping belongs after the exchange. Done before it, the ranks use different factors, so that shards weigh differently,
and the norm of the sum may exceed the limit. It is right where nothing is clipped, and on one device.

Source: mindspore-lab/mindcv#603, horovod/horovod#1346, determined-ai/determined#602
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "clipp"


class Mutant(DDPTrainer):
    """SGD with clipping, gradients summed by hand."""

    oracle: Literal["self"] = "self"
    max_norm = 0.1

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), self.max_norm)
        for param in net.parameters():
            if param.requires_grad:
                param.grad = torch.zeros_like(param) if param.grad is None else param.grad
                dist.all_reduce(param.grad)
        self.optimizer.step()
        return loss.detach()
