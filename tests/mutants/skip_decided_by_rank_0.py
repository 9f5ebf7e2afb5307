"""Whether a step is skipped is decided by rank 0's loss alone.

A guard against spikes looks at the loss that is logged, which is rank 0's, and tells the other ranks. All of them do
the same, so no replica drifts; where another rank's loss is not a number, all become NaN together.

Source: ecmwf/WeatherGenerator#2718
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from tests.support.step_trainers import WholeStep

KIND = "trainer"
KILLED_BY = "not_a_number"
LOOKS_LIKE = "decided on one rank's own"


class Mutant(WholeStep):
    """`WholeStep` with a guard of its loss in the place of its gradient."""

    def skips(self, loss: Tensor) -> bool:
        first = loss.clone()
        dist.broadcast(first, src=0)
        return not bool(first.isfinite())
