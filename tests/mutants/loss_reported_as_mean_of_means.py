"""The loss that is reported is the mean of the shards' means; the gradient is right.

Each rank returns its own mean, to be averaged over the ranks. On even shards it is the mean over the batch. On the last
batch of an epoch it is not, and an epoch's curve ends in a small step that is in nobody's gradients.

Source: huggingface/transformers#608, Lightning-AI/pytorch-lightning#12407
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "must return its"


class Mutant(DDPTrainer):
    """`DDPTrainer` with another loss to report."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = super().step(X, y, global_batch_size)
        return loss * global_batch_size / max(1, len(y)) / dist.get_world_size()
