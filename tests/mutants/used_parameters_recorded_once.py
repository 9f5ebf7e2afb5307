"""Parameters that were not used in the first step are never exchanged in later ones.

The set of used parameters is recorded once and taken for constant. Nets that use all of them are right, and others
for as long as the branches stay the same. A parameter that comes into play later keeps each rank's own gradient.

Source: pytorch/pytorch#55248 (static graph: "the set of used and unused parameters will not change")
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
    """Gradients exchanged by hand, for the parameters that some rank used in the first step."""

    used: list[Tensor] | None = None

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        loss.backward()
        if self.used is None:
            flags = torch.tensor([float(param.grad is not None) for param in net.parameters()], device=X.device)
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
            self.used = [param for param, flag in zip(net.parameters(), flags.tolist(), strict=True) if flag]
        for param in self.used:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            dist.all_reduce(param.grad)
        self.optimizer.step()
        return loss.detach()
