"""Resuming loses the momentum, because the optimizer is new and has no place for it yet.

The optimizer makes its state in its first step. What is loaded before is read into the places that it has, and there
are none. Weights, schedule and generators are right.

Source: KempnerInstitute/KempnerForge#115
"""

from __future__ import annotations

from typing import Any

from tests.support.step_trainers import WholeStep

KIND = "trainer"
KILLED_BY = "resume"
LOOKS_LIKE = "optimizer's state"


class Mutant(WholeStep):
    """`WholeStep` that loads into the state that its optimizer has."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        optimizer = {**state["optimizer"], "state": self.optimizer.state_dict()["state"]}
        super().load_state_dict({**state, "optimizer": optimizer})
