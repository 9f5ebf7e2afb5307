"""Every rank divides the common gradient by a loss scale of its own.

The scales start alike. They part when a gradient overflows on one rank alone, which is the only one to lower its scale;
from there on the ranks sum gradients that were scaled differently, and divide the sum by different numbers.

Source: pytorch/pytorch#136009
"""

from __future__ import annotations

from tests.support.step_trainers import WholeStep

KIND = "trainer"
KILLED_BY = "not_a_number"
LOOKS_LIKE = "loss scale | drifted apart"


class Mutant(WholeStep):
    """`WholeStep` whose scale follows what the rank saw before the exchange; all ranks skip alike."""

    overflowed = False

    def exchange(self) -> None:
        self.overflowed = not self.finite()
        super().exchange()

    def adapt(self, skipped: bool) -> None:
        super().adapt(self.overflowed)
