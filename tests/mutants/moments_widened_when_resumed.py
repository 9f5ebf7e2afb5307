"""Resuming widens the optimizer's moments from bfloat16 to the dtype of the parameters.

torch's `Optimizer.load_state_dict` casts floating-point state to its parameter's dtype. What was saved is loaded to the
bit, and every later step rounds it no more.

Source: pytorch/torchtitan#4615, pytorch/pytorch#43706
"""

from __future__ import annotations

from typing import Any

import torch

from tests.right.copies import Momentum, NarrowMoments

KIND = "trainer"
KILLED_BY = "resume"
LOOKS_LIKE = "dtype of"


class _Widening(Momentum):
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        torch.optim.Optimizer.load_state_dict(self, state_dict)


class Mutant(NarrowMoments):
    """`NarrowMoments` with torch's way of loading."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return _Widening(self.trained, lr)
