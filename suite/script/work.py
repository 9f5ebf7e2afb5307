"""What a rank of a script computes in an update, and minibatches that stay in memory (worker's side)."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import dataloader

from suite.script import trees
from suite.script.patching import wrap

SIZES = 2  # that minibatches of one batch size have: the last of an epoch may be smaller


class Work:
    """Counts backward passes, and minibatches and their rows; gives the last minibatch of a loader again.

    What is drawn without gradients is for an evaluation, and passes. An evaluation with gradients would never end if
    every minibatch came again, so that only as many do as the updates of a window draw.

    Attributes:
        counts: whether what comes counts.
        remembers: whether the last minibatch of each loader is kept.
        passes: backward passes so far.
    """

    def __init__(self) -> None:
        """Patch torch; what is patched costs only when it is called."""
        self.counts, self.remembers = True, False
        self.passes = 0
        self._sizes: list[int] = []
        self._again = 0  # minibatches that come again
        self._last: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        wrap(torch.autograd, "backward", self._pass)
        wrap(dataloader._BaseDataLoaderIter, "__next__", self._draw)

    def begin(self) -> None:
        """Count from 0."""
        self.passes = 0
        self._sizes.clear()

    @property
    def draws(self) -> int:
        """Minibatches so far."""
        return len(self._sizes)

    @property
    def rows(self) -> int:
        """Of the minibatches so far; 0 where the script draws from no DataLoader, or minibatches of many sizes."""
        return sum(self._sizes) if len(set(self._sizes)) <= SIZES else 0

    def repeat(self, updates: int, per_update: float) -> None:
        """Let the minibatches of so many updates come again, each of which draws so many."""
        self._again = updates * math.ceil(per_update)

    def _pass(self, backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        backward(*args, **kwargs)
        self.passes += self.counts

    def _draw(self, draw: Callable[[Any], Any], loading: Any) -> Any:
        if not torch.is_grad_enabled():
            return draw(loading)
        if self._again > 0 and loading in self._last:
            self._again -= 1
            return self._last[loading]
        batch = draw(loading)
        if self.remembers:
            self._last[loading] = batch
        if self.counts:
            first = next(trees.leaves(batch), None)
            self._sizes.append(0 if first is None or first.ndim == 0 else len(first))
        return batch
