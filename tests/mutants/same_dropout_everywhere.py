"""Dropout masks are the same on every rank, because every step seeds all of them alike.

Reproducible runs set one seed in all processes. Nets without dropout are right, and with it each rank's gradient is a
valid one; only their noise no longer averages out, and a larger world regularises less than it should.

Source: huggingface/transformers#31412, facebookresearch/fastMRI#123
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "dropout"
LOOKS_LIKE = "same seed | generators"


class Mutant(DDPTrainer):
    """`DDPTrainer` with one seed a step."""

    steps = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.steps += 1
        torch.manual_seed(self.steps)
        return super().step(X, y, global_batch_size)
