"""Trainers that really fail on a GPU, and on a CPU in its own way."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch import distributed as dist

from reference.trainers.ddp import DDPTrainer

MORE_BYTES = 1 << 50  # than any device has


class TakesAllMemory(DDPTrainer):
    """Asks for more memory than there is, on one rank."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            torch.empty(MORE_BYTES, dtype=torch.uint8, device=X.device)
        return super().step(X, y, global_batch_size)


class ReadsPastTheEnd(DDPTrainer):
    """Indexes past the end of a tensor, on one rank: an assertion in a kernel of a GPU."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            X[torch.tensor([len(X)], device=X.device)].sum().item()
        return super().step(X, y, global_batch_size)


class RankOneNeverComes(DDPTrainer):
    """One rank waits for something else, and the other in an exchange for it."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            time.sleep(3600)
        dist.all_reduce(torch.ones(1, device=X.device))
        return super().step(X, y, global_batch_size)
