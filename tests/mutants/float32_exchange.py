"""Gradients pass through float32 on their way between the devices, whatever dtype they have.

A communication buffer of a fixed dtype. It is exact for float32 and half-precision training, and wrong in the eighth
digit for float64, which one chooses for the digits behind it.

Source: no public report; the wider of two buffers, the narrower being pytorch/pytorch#106395
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.all_reduce.naive import naive_
from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "lower precision | less precision"


class Mutant(Scratch):
    """`Scratch` with a float32 buffer for the exchange."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return self._step(X, y, global_batch_size, self.exchange)

    @torch.no_grad()
    def exchange(self, grads: Sequence[Tensor]) -> None:
        if len(grads) < 2:
            return
        buffers = [grad.to(torch.float32, copy=True) for grad in grads]
        naive_(buffers)
        for grad, buffer in zip(grads, buffers, strict=True):
            grad.copy_(buffer)
