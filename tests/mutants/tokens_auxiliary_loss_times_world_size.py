"""An auxiliary loss is multiplied by the number of ranks together with the main one, and counts that often.

The main loss is divided by the tokens of all ranks, so it is multiplied to undo DDP's average. The auxiliary loss is a
mean over the rank's own tokens, and the average over ranks is what it needs.

Source: huggingface/transformers#48706
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from reference.loss import term_counts, term_sums
from reference.nest import Nest
from reference.trainers.ddp import DDPTokensTrainer

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "must return its"


class Mutant(DDPTokensTrainer):
    """`DDPTokensTrainer` whose z-loss is each rank's mean, multiplied as well."""

    def step(self, X: Nest, y: Nest, global_batch_size: int) -> Tensor:
        own = term_counts(y)
        counts = own.clone()
        dist.all_reduce(counts)
        main, auxiliary = term_sums(self.net(X), y) / torch.stack([counts[0], own[1].clamp(min=1)])
        self.optimizer.zero_grad()
        ((main + auxiliary) * dist.get_world_size()).backward()
        self.optimizer.step()
        return (main + auxiliary).detach()
