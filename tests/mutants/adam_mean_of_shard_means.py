"""Each rank's mean over its own samples has the same weight, and the optimizer is AdamW.

Under oracle "self" the shards' gradients are not known, and with small shards the mean of means is near a multiple of
the right gradient.

Source: huggingface/transformers#608, pytorch/pytorch#67253
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from tests.right.by_hand import ByHand

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "mean of the shards' means | ranks' own means | must return its"


class Mutant(ByHand):
    """`ByHand` divided by each shard's own size."""

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return super().part_of_loss(X, y, max(1, len(y)) * dist.get_world_size())
