"""A minibatch smaller than the first one is not trained on.

The trainer keeps static shapes (compiled graphs, collectives of equal sizes) and leaves out what does not fit. It is
right as long as batch sizes do not change, so for every step of an epoch but the last.

Source: criteo/tf-yarn#79, huggingface/transformers#4757
"""

from __future__ import annotations

from torch import Tensor

from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "trajectory"
LOOKS_LIKE = "minibatch left out | samples that were left out | lost or repeated | no replica was given"


class Mutant(Scratch):
    """`Scratch` for one batch size."""

    batch_size = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.batch_size = self.batch_size or global_batch_size
        if global_batch_size < self.batch_size:
            return X.new_zeros(())
        return super().step(X, y, global_batch_size)
