"""What a rank of a script does between updates, and minibatches that stay in memory (worker's side)."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import dataloader

from suite.script import trees
from suite.script.patching import wrap

UPDATES = 4  # that show how much one of them has
SIZES = 2  # that minibatches of one batch size have: the last of an epoch may be smaller


class Work:
    """Counts backward passes, minibatches and their rows in the first updates; gives the last minibatch again.

    What is drawn without gradients is for an evaluation, and passes. An evaluation with gradients would never end if
    every minibatch came again, so that only as many do as the updates of a window draw.

    Attributes:
        passes, draws, rows: backward passes, minibatches, and their rows in an update; 0 until they are known. Rows are
            0 where the script draws from no DataLoader, or minibatches of many sizes.
        events: what does not belong to a step: an evaluation, which changes a module's mode, or a checkpoint.
        remembers: whether the last minibatch of each loader is kept.
    """

    def __init__(self) -> None:
        """Patch torch; what is patched costs only when it is called."""
        self.passes = self.draws = self.rows = 0.0
        self.events: list[str] = []
        self.remembers = False
        self._counts = True
        self._again = 0  # minibatches that come again
        self._last: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.begin()
        wrap(torch.autograd, "backward", self._go_back)
        wrap(dataloader._BaseDataLoaderIter, "__next__", self._draw)
        wrap(nn.Module, "train", self._train)
        wrap(torch, "save", self._save)

    def begin(self) -> None:
        """Count from 0."""
        self._updates = self._passes = 0
        self._sizes: list[int] = []

    def note(self, updates: int) -> None:
        """Take in that so many updates were made, until they are enough."""
        self._updates += updates
        if self._counts and self._updates >= UPDATES:
            rows = sum(self._sizes) if len(set(self._sizes)) <= SIZES else 0
            self.passes, self.draws, self.rows = (
                each / self._updates for each in (self._passes, len(self._sizes), rows)
            )
            self._counts = False

    def repeat(self, updates: int) -> None:
        """Let the minibatches of so many updates come again."""
        self._again = updates * math.ceil(self.draws)

    def _go_back(self, backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        backward(*args, **kwargs)
        self._passes += 1

    def _draw(self, draw: Callable[[Any], Any], loading: Any) -> Any:
        if not torch.is_grad_enabled():
            return draw(loading)
        if self._again > 0 and loading in self._last:
            self._again -= 1
            return self._last[loading]
        batch = draw(loading)
        if self.remembers:
            self._last[loading] = batch
        if self._counts:
            first = next(trees.leaves(batch), None)
            self._sizes.append(0 if first is None or first.ndim == 0 else len(first))
        return batch

    def _train(self, train: Callable[..., nn.Module], module: nn.Module, mode: bool = True) -> nn.Module:
        if module.training != mode:
            self.events.append("an evaluation")
        return train(module, mode)

    def _save(self, save: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        self.events.append("a checkpoint")
        save(*args, **kwargs)
