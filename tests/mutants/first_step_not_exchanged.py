"""The gradients of the first step are not exchanged.

The hooks that exchange are set up by the first backward, which they miss where the loop calls backward by itself. All
later steps are right, but from different weights on every rank.

Source: Lightning-AI/pytorch-lightning#21251
"""

from __future__ import annotations

from tests.support.step_trainers import PlainStep

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(PlainStep):
    """`PlainStep` that is ready to exchange one step late."""

    ready = False

    def exchange(self) -> None:
        if self.ready:
            super().exchange()
        self.ready = True
