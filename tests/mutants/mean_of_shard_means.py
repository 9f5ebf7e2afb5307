"""Every rank's mean loss has the same weight, so samples of a smaller shard count more.

``F.cross_entropy`` averages over the shard and DDP over the ranks. With a sampler that gives every rank equally many
samples the two are the mean over the batch; with 13 = 7 + 6 they are not, and an empty shard counts as one of zeros.

Source: pytorch/pytorch#67253, pytorch/pytorch#37359
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "mean of the shards' means | ranks' own means | must return its"


class Mutant(DDPTrainer):
    """`DDPTrainer` on each shard's mean."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return super().step(X, y, max(1, len(y)) * dist.get_world_size())
