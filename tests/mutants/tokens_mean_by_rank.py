"""Every rank's mean over its own tokens has the same weight, so tokens of a rank with fewer of them count more.

With equally many samples on every rank a classifier is right; texts are of unequal length, and some labels are ignored.

Source: pytorch/torchtitan#2206, huggingface/transformers#34242
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.loss import term_counts, term_sums
from reference.nest import Nest
from reference.trainers.ddp import DDPTokensTrainer

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "mean of the shards' means | ranks' own means | must return its"


class Mutant(DDPTokensTrainer):
    """`DDPTokensTrainer` on each rank's mean, averaged by DDP."""

    def step(self, X: Nest, y: Nest, global_batch_size: int) -> Tensor:
        counts = term_counts(y)
        loss = (term_sums(self.net(X), y) / torch.where(counts > 0, counts, 1)).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
