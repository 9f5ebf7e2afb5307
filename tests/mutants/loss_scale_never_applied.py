"""Gradients are divided by a loss scale that the loss was never multiplied by.

Who owns the backward scales the loss, and who owns the optimizer divides; after a refactoring the first one no longer
does. With Adam the factor cancels, so training only slows down through epsilon and clipping.

Source: deepspeedai/DeepSpeed#7839
"""

from __future__ import annotations

from torch import Tensor

from tests.support.step_trainers import PlainStep

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = "times the right gradient"


class Mutant(PlainStep):
    """`PlainStep` without the first half of its scaling."""

    def scaled(self, loss: Tensor) -> Tensor:
        return loss
