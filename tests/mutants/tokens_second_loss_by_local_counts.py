"""The main loss is divided by the tokens of all ranks, and a second one by those of the rank alone.

On equal shares, and on one device, both are right.

Source: NVIDIA/Megatron-LM#7452
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from reference.loss import term_counts, term_sums
from reference.nest import Nest
from reference.trainers.ddp import DDPTokensTrainer

KIND = "trainer"
KILLED_BY = "trajectory"
LOOKS_LIKE = "must return its"


class Mutant(DDPTokensTrainer):
    """`DDPTokensTrainer` whose z-loss is the mean of the ranks' means."""

    def step(self, X: Nest, y: Nest, global_batch_size: int) -> Tensor:
        own, ranks = term_counts(y), dist.get_world_size()
        counts = own.clone()
        dist.all_reduce(counts)
        loss = (term_sums(self.net(X), y) / torch.stack([counts[0], own[1].clamp(min=1) * ranks])).sum()
        self.optimizer.zero_grad()
        (loss * ranks).backward()
        self.optimizer.step()
        return loss.detach()
