"""The exchanged gradients are never copied out of the flat buffer they were exchanged in.

Concatenate, all-reduce, and go on with ``param.grad``: ``cat`` copies, so the sum stays in the buffer and every rank
applies its own shard's gradient. The traffic is all there, and so is the time it takes. One device is right.

Source: d2l-ai/d2l-zh#955 (the same loss by another way), NVIDIA/Megatron-LM#5337
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "replicas"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart | not written back"


class Mutant(DDPTrainer):
    """Gradients exchanged by hand in one buffer."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        loss.backward()
        trained = [param for param in net.parameters() if param.requires_grad]
        grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in trained]
        dist.all_reduce(torch.cat([grad.flatten() for grad in grads]))
        self.optimizer.step()
        return loss.detach()
