"""Every rank limits the values of its own shard's gradient, and the sum of limited values is another gradient.

With `clip_grad_value_` no norm is shared, so nothing seems to need the other ranks. The sum is wrong where a value is
beyond the limit on one rank only, and may be beyond it on all. It is right where nothing is clipped, and on one device.

Source: mindspore-lab/mindcv#603, horovod/horovod#1346 (clipping before the exchange; there by the norm)
"""

from __future__ import annotations

from torch import nn

from tests.support.step_trainers import ClippedByValue

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "clipp"


class Mutant(ClippedByValue):
    """`ClippedByValue` that clips first and sums over the ranks then."""

    def exchange(self) -> None:
        nn.utils.clip_grad_value_(self.trained, self.max_value * self.scale)
        super().exchange()

    def clip(self) -> None:
        """Leave the sums as they are."""
