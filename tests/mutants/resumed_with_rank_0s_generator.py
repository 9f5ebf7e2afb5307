"""Resuming gives every rank rank 0's generator.

One file is written for all ranks, and it has the state of rank 0's generator. The weights agree on all ranks, so
nothing else is lost; dropout draws the same masks on all ranks from there on.

Source: radixark/miles#3187
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from tests.support.step_trainers import WholeStep

KIND = "trainer"
KILLED_BY = "resume"
LOOKS_LIKE = "generators"


class Mutant(WholeStep):
    """`WholeStep` that saves rank 0's generator on all ranks."""

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        dist.broadcast(state["generator"], src=0)
        return state
