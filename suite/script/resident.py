"""A script's minibatch that stays in memory: its loader gives the last one again (worker's side)."""

from __future__ import annotations

import functools
import math
import weakref
from typing import Any

import torch
from torch.utils.data import dataloader


class Resident:
    """Counts what a script draws from its loaders with gradients on, and gives it the last minibatch again.

    What is drawn without gradients is for an evaluation, and passes. An evaluation with gradients would never end if
    every minibatch came again, so that only as many do as the updates of a window draw.

    Attributes:
        drawn: minibatches so far, of either kind.
    """

    def __init__(self) -> None:
        """Patch torch."""
        self.drawn = 0
        self._again = 0  # minibatches that come again
        self._last: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        iterator: Any = dataloader._BaseDataLoaderIter
        draw = iterator.__next__

        @functools.wraps(draw)
        def drawn(loading: Any) -> Any:
            if not torch.is_grad_enabled():
                return draw(loading)
            self.drawn += 1
            if self._again > 0 and loading in self._last:
                self._again -= 1
                return self._last[loading]
            batch = self._last[loading] = draw(loading)
            return batch

        iterator.__next__ = drawn

    def keep(self, updates: int, per_update: float) -> None:
        """Let the minibatches of so many updates come again, each of which draws so many."""
        self._again = updates * math.ceil(per_update)
