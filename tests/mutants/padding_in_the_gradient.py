"""Samples repeated to fill the last shard count twice in the gradient.

What DistributedSampler does to an epoch, done to a minibatch: the first samples are appended until the devices divide
it, and the mean is taken over all of them. It is right when k divides the batch.

Source: pytorch/pytorch#22584, pytorch/pytorch#25162
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "samples repeated | lost or repeated"


class Mutant(Scratch):
    """`Scratch` on shards of equal size."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        missing = -len(X) % len(self.nets)
        again = torch.arange(missing, device=X.device) % len(X)
        X, y = torch.cat([X, X[again]]), torch.cat([y, y[again]])
        return super().step(X, y, len(X))
