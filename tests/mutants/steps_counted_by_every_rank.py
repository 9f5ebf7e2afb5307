"""The number of steps in a checkpoint is k times too large.

Every rank's step counts. A run that is resumed on as many devices divides again and is right, and one that is resumed
on others is elsewhere in its schedule.

Source: bghira/SimpleTuner#922 (the step of a resumed state, times the number of GPUs)
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from tests.right.by_hand import CountsSteps

KIND = "trainer"
KILLED_BY = "state"
LOOKS_LIKE = ""


class Mutant(CountsSteps):
    """`CountsSteps` that saves k times as many."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "steps": self.steps * dist.get_world_size()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.steps //= dist.get_world_size()
