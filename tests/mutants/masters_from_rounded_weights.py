"""Resuming makes the master weights anew from the net's weights, which were rounded to bfloat16.

What the masters had beyond eight bits is lost at every interruption. In float64 and float32 there is nothing to lose
where masters have no more digits than the weights; it shows in bfloat16 alone.

Source: TensorAuto/OpenTau#185
"""

from __future__ import annotations

from typing import Any

import torch

from tests.right.by_hand import ByHand
from tests.right.copies import AdamMasters

KIND = "trainer"
KILLED_BY = "resume"
LOOKS_LIKE = "rounded weights"


class Mutant(AdamMasters):
    """`AdamMasters` that loads no masters."""

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        ByHand.load_state_dict(self, state)
        for master, param in zip(self.masters, self.trained, strict=True):
            master.copy_(param)
