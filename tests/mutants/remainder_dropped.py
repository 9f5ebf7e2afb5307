"""Samples that do not fill a shard are left out, while the gradient is still divided by the whole batch.

``n // k`` samples a device, and the rest is nobody's. It is right when k divides the batch; a minibatch smaller than
the number of devices has no gradient at all.

Source: pytorch/pytorch#5039 (a wrapper whose documentation asked for batches that the devices divide)
"""

from __future__ import annotations

from torch import Tensor

from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "minibatch left out | last shard left out | samples that were left out | lost or repeated"


class Mutant(Scratch):
    """`Scratch` on as many samples as the devices divide."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        even = len(X) // len(self.nets) * len(self.nets)
        if even == 0:
            return X.new_zeros(())
        return super().step(X[:even], y[:even], global_batch_size)
