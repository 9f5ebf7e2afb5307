"""The gradient is always divided by the size of the first minibatch.

``trainer.step(batch_size)`` with the configured number: a last batch of 96 stepped with 256 is a step of 0.375 times
the right length. All full batches are right; MXNet documents it so, and most code ported from it does not know.

Source: Gluon chapter, row 3-trainer; jingyaogong/minimind#749 (the same in accumulation)
"""

from __future__ import annotations

from torch import Tensor

from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = "times the right gradient | must return its"


class Mutant(Scratch):
    """`Scratch` with the batch size of the configuration."""

    batch_size = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.batch_size = self.batch_size or global_batch_size
        return super().step(X, y, self.batch_size)
