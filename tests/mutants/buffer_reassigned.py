"""A buffer that the model replaces by a new tensor is no longer sent from rank 0.

The list of buffers is taken once, when the trainer is made. ``self.calls = self.calls + 1`` leaves the old tensor in
that list, and the ranks go on exchanging it. In-place updates, BatchNorm's among them, are right.

Source: pytorch/pytorch#63916
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"


class Mutant(DDPTrainer):
    """`DDPTrainer` with a list of buffers of its own."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.net.broadcast_buffers = False
        self.buffers = list(self.net.module.buffers())

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        for buffer in self.buffers:
            dist.broadcast(buffer, src=0)
        return super().step(X, y, global_batch_size)
