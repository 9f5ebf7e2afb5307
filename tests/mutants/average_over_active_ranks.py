"""The gradient is averaged over the ranks that have samples, one rank one vote.

A repair of the mean of means for empty shards only: idle ranks no longer pull the mean towards zero, but shards of 4,
4 and 2 samples still count as equals. It is right when all shards that are not empty have equally many.

Source: deepspeedai/DeepSpeed#291 (a reviewer asks whether to divide by all ranks when only some have gradients)
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "mean of the shards' means | ranks' own means | must return its"


class Mutant(DDPTrainer):
    """`DDPTrainer` that counts the ranks at work."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        at_work = X.new_tensor(float(len(y) > 0))
        dist.all_reduce(at_work)
        return super().step(X, y, max(1, len(y)) * int(at_work))
