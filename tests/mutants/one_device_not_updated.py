"""On a single device nothing is learnt: the update belongs to the exchange, and there is none.

Optimiser wrappers step when the last bucket has arrived. With one device no bucket is ever sent. The loss stays
where it was, the step is fast, and the speed-up over it poor.

Source: pytorch/pytorch#144045 (gradients of zero on one GPU)
"""

from __future__ import annotations

from torch import Tensor

from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = "nothing was learned"


class Mutant(Scratch):
    """`Scratch` that steps after its exchange."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        rate, self.lr = self.lr, self.lr if len(self.nets) > 1 else 0.0
        try:
            return super().step(X, y, global_batch_size)
        finally:
            self.lr = rate
