"""The schedule of the learning rate is advanced once for every rank in every step.

A wrapped scheduler multiplies its steps by the number of processes, because it assumes that each one goes through all
of the data. The rate falls k times as fast; on one device it is right.

Source: Lightricks/LTX-Video-Trainer#67
"""

from __future__ import annotations

import torch.distributed as dist

from tests.support.step_trainers import WholeStep

KIND = "trainer"
KILLED_BY = "trajectory"
LOOKS_LIKE = "schedule"


class Mutant(WholeStep):
    """`WholeStep` with k steps of its schedule."""

    def advance(self) -> None:
        for _ in range(dist.get_world_size()):
            super().advance()
