"""The last shard is never trained on when it is smaller than the others.

Workers with a short shard would make a collective wait or a gather fail, so they sit the step out, and their samples
with them; the others' gradients are averaged over what is left. It is right when k divides the batch.

Source: pytorch/pytorch#52289 (the failing gather), pytorch/xla#1279 (dropping as the way around it)
"""

from __future__ import annotations

from torch import Tensor

from reference.scatter import chunk_sizes
from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "last shard left out | samples that were left out | samples lost"


class Mutant(Scratch):
    """`Scratch` without shards of another size than the first."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        sizes = chunk_sizes(len(X), len(self.nets))
        full = sizes[0] * sizes.count(sizes[0])
        return super().step(X[:full], y[:full], full)
