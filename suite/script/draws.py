"""Watches the DataLoaders of a script: which there are, and what is drawn from them (worker's side).

A loader is known by the place in the script that iterates over it, because that is the same on one device and on
several. What is drawn without gradients is for an evaluation, and passes.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, DistributedSampler

from suite.script import trees

FRAMES = 3  # of the script that tell one place from another
LIBRARIES = tuple(
    str(path) for path in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), Path(torch.__file__).parent)
)
OURS = str(Path(__file__).parents[1])


class Draws:
    """What was drawn, and by which loaders.

    Attributes:
        trained: those that were drawn from with gradients.
        epochs_set: how often `set_epoch` of a DistributedSampler was called, by the sampler's id.
        count: draws since the last update.
    """

    def __init__(self, drawn: Callable[[Drawing, Any], Any], ended: Callable[[Drawing], Any]) -> None:
        """Keep whom to tell.

        Args:
            drawn: is called with every minibatch, and returns what the script gets.
            ended: is called instead where the loader has no more; a minibatch that it returns is drawn all the same.
        """
        self.drawn, self.ended = drawn, ended
        self.count = 0
        self.epochs_set: Counter[int] = Counter()
        self._made: list[weakref.ref[DataLoader[Any]]] = []
        self.trained: list[DataLoader[Any]] = []
        self._iterations: Counter[str] = Counter()

    @property
    def loaders(self) -> list[DataLoader[Any]]:
        """Return those that were made and are alive, in that order."""
        return [loader for made in self._made if (loader := made()) is not None]

    def install(self) -> None:
        """Patch torch."""
        loader_class, sampler_class = cast(Any, DataLoader), cast(Any, DistributedSampler)
        init, begin, set_epoch = loader_class.__init__, loader_class.__iter__, sampler_class.set_epoch

        @functools.wraps(init)
        def made(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            init(loader, *args, **kwargs)
            self._made.append(weakref.ref(loader))

        @functools.wraps(begin)
        def begun(loader: DataLoader[Any]) -> Any:
            place = place_in_script()
            self._iterations[place] += 1
            return Drawing(self, begin(loader), loader, place, self._iterations[place] - 1)

        @functools.wraps(set_epoch)
        def epoch_set(sampler: DistributedSampler[Any], epoch: int) -> None:
            self.epochs_set[id(sampler)] += 1
            set_epoch(sampler, epoch)

        loader_class.__init__, loader_class.__iter__, sampler_class.set_epoch = made, begun, epoch_set


class Drawing:
    """One iteration over a loader.

    Attributes:
        place: of the script that iterates.
        iteration: how many there were before it at this place.
        number: of the next draw.
        last: the last minibatch that the loader gave.
    """

    def __init__(self, draws: Draws, inner: Iterator[Any], loader: DataLoader[Any], place: str, iteration: int) -> None:
        self.place, self.iteration, self.number, self.last = place, iteration, 0, None
        self._draws, self._inner, self._loader = draws, inner, loader

    def __iter__(self) -> Drawing:
        return self

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        if not torch.is_grad_enabled():
            return next(self._inner)
        draws = self._draws
        if not any(loader is self._loader for loader in draws.trained):
            draws.trained.append(self._loader)
        try:
            batch = self.last = next(self._inner)
        except StopIteration:
            batch = draws.ended(self)
            if batch is None:
                raise
        else:
            batch = draws.drawn(self, batch)
        self.number += 1
        draws.count += 1
        return batch


def place_in_script() -> str:
    """Return where the script is, by its innermost frames outside of libraries."""
    frame, found = sys._getframe(1), list[str]()
    while frame is not None and len(found) < FRAMES:
        name = frame.f_code.co_filename
        if not name.startswith((*LIBRARIES, OURS, "<")):
            found.append(f"{os.path.basename(name)}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return trees.digest_of("\n".join(found).encode())
