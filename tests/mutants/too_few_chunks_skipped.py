"""A minibatch that gives fewer shards than devices is skipped altogether.

torch splits 9 samples over 4 devices as 3, 3, 3; the fourth replica has no input and used to raise a TypeError. The way
around it, "skip such a batch", silently drops data whenever ceil(n / ceil(n / k)) < k, also for batches larger than k.

Source: pytorch/pytorch#15161, m-bain/frozen-in-time#23
"""

from __future__ import annotations

from torch import Tensor

from reference.scatter import chunk_sizes
from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "minibatch left out | samples that were left out | lost or repeated | no replica was given"


class Mutant(Scratch):
    """`Scratch` that wants a shard for every device."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if len(chunk_sizes(len(X), len(self.nets))) < len(self.nets):
            return X.new_zeros(())
        return super().step(X, y, global_batch_size)
