"""A rank whose labels are all ignored divides 0 by 0, and the exchange makes the gradients of all ranks NaN.

The ranks' means are weighted rightly, by the share of the tokens that each rank has, but 0 times NaN is NaN.

Source: allenai/OLMo-core#657
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from reference.loss import term_counts, term_sums
from reference.nest import Nest
from reference.trainers.ddp import DDPTokensTrainer

KIND = "trainer"
KILLED_BY = "inputs"
LOOKS_LIKE = "none of whose labels counts | not a number"


class Mutant(DDPTokensTrainer):
    """`DDPTokensTrainer` that divides by its own count first."""

    def step(self, X: Nest, y: Nest, global_batch_size: int) -> Tensor:
        own = term_counts(y)
        counts = own.clone()
        dist.all_reduce(counts)
        loss = (term_sums(self.net(X), y) / own * (own / counts)).sum()
        self.optimizer.zero_grad()
        (loss * dist.get_world_size()).backward()
        self.optimizer.step()
        return loss.detach()
