"""The sum over a mesh of two axes is divided by the size of one of them.

The factor that was set for one axis means something else once there are two: the gradient is too large by the number of
replicas. On a mesh of one axis nothing is wrong, and all replicas agree on any.

Source: pytorch/pytorch#155903
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from tests.support.step_trainers import Hybrid

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "times the right gradient | summed over the devices"


class Mutant(Hybrid):
    """`Hybrid` that takes a mean over ranks, as FSDP does, and corrects for the shards' axis alone."""

    def scaled(self, loss: Tensor) -> Tensor:
        return super().scaled(loss) * dist.get_world_size()

    def exchange(self) -> None:
        super().exchange()
        for grad in self.grads:
            grad.div_(self.shards)

    def clip(self) -> None:
        self.own = self.part(self.grads)
