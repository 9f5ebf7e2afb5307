"""Each rank takes an Adam step of its own, and the parameters are averaged afterwards instead of the gradients.

For plain SGD the two are the same. Adam divides by each rank's own second moment, which was never exchanged. Replicas
are equal to the bit after every step, the loss goes down, and one device is right.

Source: Li et al. 2020, "PyTorch Distributed" (arXiv:2006.15704), on parameter averaging
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(DDPTrainer):
    """Adam, parameters averaged by hand."""

    oracle: Literal["self"] = "self"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.optimizer = torch.optim.Adam(self.net.module.parameters(), lr)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        (loss * dist.get_world_size()).backward()
        self.optimizer.step()
        with torch.no_grad():
            for param in net.parameters():
                dist.all_reduce(param)
                param.div_(dist.get_world_size())
        return loss.detach()
