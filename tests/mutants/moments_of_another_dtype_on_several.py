"""On several devices the optimizer's moments have another dtype than on one: the parameters' own instead of bfloat16.

The moments are made anew as parts of a buffer, which has the dtype of the parameters. The memory that narrow moments
save is gone, and the steps are those of another optimizer.

Source: pytorch/torchtitan#4615 (the same cast, where training is resumed)
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.right.copies import Momentum, NarrowMoments

KIND = "trainer"
KILLED_BY = "trajectory"
LOOKS_LIKE = "dtype of"


class Mutant(NarrowMoments):
    """`NarrowMoments` on one device alone."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        optimizer = Momentum(self.trained, lr)
        optimizer.kept = self.trained[0].dtype if dist.get_world_size() > 1 else torch.bfloat16
        return optimizer
