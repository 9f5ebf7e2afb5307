"""Resuming starts the schedule of the learning rate again, because its state is not saved.

The optimizer's state has the rate of the interruption. The schedule is made after that, at its first step, and sets
the rate back.

Source: lightly-ai/lightly-train#301
"""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from tests.support.step_trainers import WholeStep

KIND = "trainer"
KILLED_BY = "resume"
LOOKS_LIKE = "schedule"


class Mutant(WholeStep):
    """`WholeStep` with a new schedule where it is resumed."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.schedule = LambdaLR(self.optimizer, lambda step: self.decay**step)  # type: ignore[assignment]
