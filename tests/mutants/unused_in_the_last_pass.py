"""Parameters that the last micro-batch does not use are not exchanged, although earlier ones used them.

Looking for unused parameters, the reducer takes the synchronised pass for the whole step. What accumulated in the
others before stays local, and the ranks drift apart. Nets that use everything in every pass are right, and so is any
net without accumulation: it takes a branch that depends on the data, and both at once.

Source: pytorch/pytorch#69031 (torch 2.15 itself is right)
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
    """Gradients exchanged by hand, in two micro-batches."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        trained = [param for param in net.parameters() if param.requires_grad]
        for param in trained:
            param.grad = torch.zeros_like(param)
        total = X.new_zeros(())
        for part, labels in zip(X.tensor_split(2), y.tensor_split(2), strict=True):
            loss = F.cross_entropy(net(part), labels, reduction="sum") / global_batch_size
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
            for param, grad in zip(trained, gradients, strict=True):
                param.grad += 0 if grad is None else grad
            total += loss.detach()
        used = torch.tensor([float(grad is not None) for grad in gradients], device=X.device)
        dist.all_reduce(used, op=dist.ReduceOp.MAX)
        for param, on_some_rank in zip(trained, used.tolist(), strict=True):
            if on_some_rank:
                dist.all_reduce(param.grad)
        self.optimizer.step()
        return total
