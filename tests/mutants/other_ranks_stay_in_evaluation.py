"""Ranks other than 0 train without dropout, because only rank 0 goes back to training mode after an evaluation.

Gradients of nets without dropout and batch normalisation are right, and so are those of rank 0's samples.

Source: unslothai/unsloth#11238 (dropout that stays off after an evaluation; there on all ranks)
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "dropout"
LOOKS_LIKE = "left in evaluation mode | in evaluation mode"


class Mutant(DDPTrainer):
    """`DDPTrainer` that evaluates before every step."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.net.eval()
        if dist.get_rank() == 0:
            self.net.train()
        return super().step(X, y, global_batch_size)
