"""Every rank decides by its own loss whether to skip a step, so the ranks drift apart where one loss is not a number.

The gradient is exchanged before, so nobody waits for a rank that skips. All ranks meet the same NaN in the gradient,
and those whose loss was a number apply it.

Source: ecmwf/WeatherGenerator#2718 (a guard that does not ask the other ranks)
"""

from __future__ import annotations

from torch import Tensor

from tests.support.step_trainers import WholeStep

KIND = "trainer"
KILLED_BY = "not_a_number"
LOOKS_LIKE = "decided on one rank's own"


class Mutant(WholeStep):
    """`WholeStep` with a guard of each rank's loss in the place of the common gradient."""

    def skips(self, loss: Tensor) -> bool:
        return not bool(loss.isfinite())
