"""How much a rank of a script computes in an update: its backward passes, and the rows of its minibatches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import dataloader

from suite.script import trees

SIZES = 2  # that minibatches of one batch size have: the last of an epoch may be smaller


class Work:
    """Counts while it is told to; what it patches costs only when it is called.

    What is drawn without gradients is for an evaluation, and does not count.

    Attributes:
        passes: backward passes so far.
        counts: whether what comes counts.
    """

    def __init__(self) -> None:
        """Patch torch."""
        self.passes, self.counts = 0, True
        self._sizes: list[int] = []
        iterator: Any = dataloader._BaseDataLoaderIter
        self._wrap(torch.autograd, "backward", lambda _: self._passed())
        self._wrap(iterator, "__next__", self._drew)

    def begin(self) -> None:
        """Count from 0."""
        self.passes = 0
        self._sizes.clear()

    @property
    def rows(self) -> int:
        """Of the minibatches so far; 0 where the script draws from no DataLoader, or minibatches of many sizes."""
        return sum(self._sizes) if len(set(self._sizes)) <= SIZES else 0

    def _wrap(self, owner: Any, name: str, seen: Callable[[Any], None]) -> None:
        wrapped = getattr(owner, name)

        @functools.wraps(wrapped)
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = wrapped(*args, **kwargs)
            if self.counts:
                seen(result)
            return result

        setattr(owner, name, counted)

    def _passed(self) -> None:
        self.passes += 1

    def _drew(self, batch: Any) -> None:
        if torch.is_grad_enabled():
            first = next(trees.leaves(batch), None)
            self._sizes.append(0 if first is None or first.ndim == 0 else len(first))
