"""Every step applies the gradients of the step before.

The exchange reads its buffer before this backward has written it. On a GPU that is a race between streams and wrong
only now and then; here it is wrong always. Training still converges, as with a delay of one step it does.

Source: pytorch/pytorch#37790, NVIDIA/Megatron-LM#3670
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.all_reduce.naive import naive_
from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = "stale"


class Mutant(Scratch):
    """`Scratch` with gradients exchanged in buffers of their own."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.buckets: list[list[Tensor]] = []

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.calls = 0
        return self._step(X, y, global_batch_size, self.exchange)

    def exchange(self, grads: Sequence[Tensor]) -> None:
        """Reduce one parameter's bucket; called once a parameter, in their order."""
        if self.calls == len(self.buckets):
            self.buckets.append([torch.zeros_like(grad) for grad in grads])
        bucket = self.buckets[self.calls]
        self.calls += 1
        naive_(bucket)
        for grad, reduced in zip(grads, bucket, strict=False):
            computed = grad.clone()
            grad.copy_(reduced)
            reduced.copy_(computed)
