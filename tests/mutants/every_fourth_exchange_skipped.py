"""Every fourth step is not exchanged, and the ranks drift apart from there.

A flag that toggles synchronisation for accumulation is left in one state too long. The first three steps are right,
which is as many as most tests take, and the loss curve shows nothing.

Source: pytorch/pytorch#21736 (why such a switch became a context manager)
"""

from __future__ import annotations

from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "trajectory"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(DDPTrainer):
    """`DDPTrainer` with a counter that decides on the exchange."""

    steps = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.steps += 1
        if self.steps % 4 == 0:
            return self.step_unsynced(X, y, global_batch_size)
        return super().step(X, y, global_batch_size)
