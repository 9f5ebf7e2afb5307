"""On a single device the summed gradient is not divided by the batch.

The special case "nothing to exchange" returns before the division, which is part of the exchange. Every number of
devices from two on is right and so are all comparisons between them; the baseline of the speed-up table is not.

Source: pytorch/pytorch#144045 (one GPU: averaging by the library was wrong there alone)
"""

from __future__ import annotations

from torch import Tensor

from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = "times the right gradient"


class Mutant(Scratch):
    """`Scratch` with a shortcut for one device."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if len(self.nets) == 1:
            return self._step(X, y, 1, None) / global_batch_size
        return super().step(X, y, global_batch_size)
