"""The last micro-batch is added to the gradient after the exchange, so every rank keeps its own part of it.

The exchange is started by a count of passes that is off by one. Replicas drift apart slowly, one device is right, and
so is a step of a single micro-batch that waits for its own.

Source: deepspeedai/DeepSpeed#7985
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from tests.support.step_trainers import WholeStep

KIND = "trainer"
KILLED_BY = "replicas"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(WholeStep):
    """`WholeStep` whose exchange comes one micro-batch early."""

    def losses(self, X: Tensor, y: Tensor, global_batch_size: int) -> Iterator[Tensor]:
        parts = list(zip(X.tensor_split(self.micro_batches), y.tensor_split(self.micro_batches), strict=True))
        for number, (part, labels) in enumerate(parts, start=1):
            if number == len(parts):
                self.exchange()
            yield self.backward(part, labels, global_batch_size)
