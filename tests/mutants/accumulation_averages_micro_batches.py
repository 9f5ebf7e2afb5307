"""Every micro-batch's mean has the same weight, so samples of a smaller micro-batch count more.

The mean of means again, in time instead of over devices. It is right when all micro-batches have equally many samples
(or tokens: there they never do), so with images nobody saw it for years.

Source: huggingface/transformers#34191, ml-explore/mlx-lm#1413
"""

from __future__ import annotations

from contextlib import nullcontext

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = "must return its"


class Mutant(DDPTrainer):
    """`DDPTrainer` in at most two micro-batches; shards are weighted rightly."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        parts = list(zip(X.chunk(2), y.chunk(2), strict=True))
        self.optimizer.zero_grad()
        total = X.new_zeros(())
        for number, (part, labels) in enumerate(parts, start=1):
            with nullcontext() if number == len(parts) else self.net.no_sync():
                mean = F.cross_entropy(self.net(part), labels, reduction="sum") / max(1, len(labels))
                loss = mean / len(parts) * len(y) / global_batch_size
                (loss * dist.get_world_size()).backward()
            total += loss.detach()
        self.optimizer.step()
        return total
