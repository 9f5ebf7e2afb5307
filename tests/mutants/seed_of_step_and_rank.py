"""Dropout masks come again one step later on the rank before, because the seed is the step's number plus the rank's.

No two ranks have the same masks in one step, so a look at one step finds nothing. Over a run, every mask is used once
on every rank. A seed that depends on the rank alone would repeat the masks in every step.

Source: no public report; the sum is that of pytorch/pytorch, torch/utils/data/distributed.py (seed plus epoch)
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "dropout"
LOOKS_LIKE = "same seed | generators"


class Mutant(DDPTrainer):
    """`DDPTrainer` with a seed for every step and rank."""

    steps = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        torch.manual_seed(self.steps + dist.get_rank())
        self.steps += 1
        return super().step(X, y, global_batch_size)
