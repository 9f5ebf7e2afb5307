"""Which loaders a script draws from, and which rows of which data set they have (worker's side).

A loader is known by the place in the script that iterates over it, because that is the same on one device and on
several. What is drawn without gradients is for an evaluation, and passes.

A row is known by its index where all ranks have the same data set, and otherwise by its content. Both are read when the
recording is over, with the same random numbers on every rank, so that an augmentation makes no difference. Not covered:
data sets that cannot be indexed, of which only what the model was given is known.
"""

from __future__ import annotations

import itertools
import os
import sys
import sysconfig
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset

from suite.room import accelerator
from suite.script import trees
from suite.script.patching import wrap
from suite.script.tape import Tape

FRAMES = 3  # of the script that tell one place from another
LIBRARIES = tuple(
    str(path) for path in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), Path(torch.__file__).parent)
)
OURS = str(Path(__file__).parents[1])
MOST_INDICES = 2_000_000  # of one epoch
MOST_ROWS = 512  # whose content is read
PATIENCE_S = 3.0  # for one data set
PRINTS = 4  # rows by which two ranks' data sets are told apart


class Draws:
    """Which loaders there are, and which of them were drawn from.

    Attributes:
        trained: those that were drawn from with gradients.
        epochs_set: how often `set_epoch` of a DistributedSampler was called, by the sampler's id.
    """

    def __init__(self, tape: Tape) -> None:
        """Keep what says which minibatches the script gets."""
        self.tape = tape
        self.epochs_set: Counter[int] = Counter()
        self.trained: list[DataLoader[Any]] = []
        self._made: list[weakref.ref[DataLoader[Any]]] = []
        self._iterations: Counter[str] = Counter()

    @property
    def loaders(self) -> list[DataLoader[Any]]:
        """Return those that are alive: those that trained first, in the order of their first draw."""
        alive = [loader for made in self._made if (loader := made()) is not None]
        return self.trained + [loader for loader in alive if not self.trains(loader)]

    def trains(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader was drawn from with gradients."""
        return any(loader is each for each in self.trained)

    def install(self) -> None:
        """Patch torch."""
        wrap(DataLoader, "__init__", self._make)
        wrap(DataLoader, "__iter__", self._begin)
        wrap(DistributedSampler, "set_epoch", self._set_epoch)

    def _make(self, init: Callable[..., None], loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
        init(loader, *args, **kwargs)
        self._made.append(weakref.ref(loader))

    def _begin(self, begin: Callable[..., Iterator[Any]], loader: DataLoader[Any]) -> Drawing:
        place = place_in_script()
        self._iterations[place] += 1
        return Drawing(self, begin(loader), loader, f"{place} {self._iterations[place]}")

    def _set_epoch(self, set_epoch: Callable[..., None], sampler: DistributedSampler[Any], epoch: int) -> None:
        self.epochs_set[id(sampler)] += 1
        set_epoch(sampler, epoch)


class Drawing:
    """One iteration over a loader; `place` says where in the script, and how often it has iterated there."""

    def __init__(self, draws: Draws, inner: Iterator[Any], loader: DataLoader[Any], place: str) -> None:
        self._draws, self._inner, self._loader, self._place = draws, inner, loader, place
        self._last: Any = None

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
        if not draws.trains(self._loader):
            draws.trained.append(self._loader)
        try:
            self._last = next(self._inner)
        except StopIteration:
            return draws.tape.drawn_after_end(self._place, self._last)
        return draws.tape.drawn(self._place, self._last)


def place_in_script() -> str:
    """Return where the script is, by its innermost frames outside of libraries."""
    frame, found = sys._getframe(1), list[str]()
    while frame is not None and len(found) < FRAMES:
        name = frame.f_code.co_filename
        if not name.startswith((*LIBRARIES, OURS, "<")):
            found.append(f"{os.path.basename(name)}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return trees.digest_of("\n".join(found).encode())


def described(draws: Draws) -> list[dict[str, Any]]:
    """Return what is known of each loader, in the order of `Draws.loaders`."""
    return [_described(loader, draws) for loader in draws.loaders]


def _described(loader: DataLoader[Any], draws: Draws) -> dict[str, Any]:
    trains = draws.trains(loader)
    base, of_base = _resolved(loader.dataset)
    sampler: Any = loader.sampler
    batches: Any = loader.batch_sampler
    of_sampler = batches is None or getattr(batches, "sampler", None) is sampler
    distributed = isinstance(sampler, DistributedSampler)
    known: dict[str, Any] = {"length": -1, "rows_of_dataset": -1, "rows": None, "everything": None}
    known |= {"prints": [], "contents": []}
    if of_base is not None:
        prints = _prints(base)
        # Rows that are the same whatever the index are drawn by other means.
        plan = None if len(set(prints)) == 1 < len(prints) else _epoch(loader)
        rows = None if plan is None else [of_base[index] for index in plan]
        everything = list(of_base) if not trains else rows or []
        known = {
            "length": len(base),
            "rows_of_dataset": len(of_base),
            "subset": "" if isinstance(of_base, range) else trees.digest(torch.tensor(of_base)),
            "rows": None if rows is None else torch.tensor(rows, dtype=torch.int64),
            "everything": torch.tensor(everything, dtype=torch.int64),
            "prints": prints,
            "contents": _contents(base, _spread(everything, MOST_ROWS)),
        }
    return {
        **known,
        "trains": trains,
        "dataset": type(base).__name__,
        "sampler": type(sampler if of_sampler else batches).__name__,
        "replicas": int(sampler.num_replicas) if distributed else 1,
        "same_order": bool(distributed and sampler.shuffle and not draws.epochs_set[id(sampler)]),
        "drops_last": bool(loader.drop_last or (distributed and sampler.drop_last)),
        "batch": int(loader.batch_size or getattr(batches, "batch_size", 1) or 1),
    }


def _resolved(dataset: Any) -> tuple[Any, range | list[int] | None]:
    """Return the data set that subsets are of, and the rows of it; None for one that cannot be indexed."""
    if isinstance(dataset, Subset):
        base, rows = _resolved(dataset.dataset)
        return base, None if rows is None else [rows[int(index)] for index in dataset.indices]
    indexed = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    return dataset, range(length(dataset)) if indexed and length(dataset) >= 0 else None


def length(thing: Any) -> int:
    """Return how many parts a thing has; -1 where that is not known."""
    try:
        return len(thing) if isinstance(thing, Sized) else -1
    except (TypeError, NotImplementedError):
        return -1


def _epoch(loader: DataLoader[Any]) -> list[int] | None:
    """Return the indices that an epoch draws; None where they are no numbers, or do not come to an end."""
    batches: Any = loader.batch_sampler
    sampler: Iterable[Any] = loader.sampler if batches is None else itertools.chain.from_iterable(batches)
    until = time.monotonic() + PATIENCE_S
    indices = []
    try:
        for index in sampler:
            indices.append(int(index))
            if len(indices) > MOST_INDICES or time.monotonic() > until:
                return None
    except Exception:  # it is the user's, and may need what is not there any more
        return None
    return indices


def _spread(rows: Any, most: int) -> list[int]:
    step = max(1, -(-len(rows) // most))
    return [int(row) for row in rows[::step]]


def _prints(dataset: Any) -> list[str]:
    """Return digests of a few rows; none where a row is another one when it is read again."""
    rows = _spread(range(len(dataset)), PRINTS)
    first = _contents(dataset, rows)
    return first if first == _contents(dataset, rows) else []


def _contents(dataset: Any, rows: list[int]) -> list[str]:
    """Return a digest of each row's content; none where they cannot be read, and fewer where that takes long."""
    until, digests = time.monotonic() + PATIENCE_S, list[str]()
    try:
        for row in rows:
            accelerator.seed((), 0)
            content = _content(dataset[row])
            if content is None or time.monotonic() > until:
                break
            digests.append(trees.digest_of(content))
    except Exception:  # it is the user's, and may need what is not there any more
        return []
    return digests


def _content(value: Any) -> bytes | None:
    if isinstance(value, torch.Tensor):
        return trees.digest(value).encode()
    if isinstance(value, trees.PLAIN):
        return repr(value).encode()
    if hasattr(value, "tobytes"):  # of NumPy, or an image
        return bytes(value.tobytes())
    parts = trees.parts_of(value)
    if parts is None:
        return None
    contents = [_content(part) for part in parts.values()]
    return None if None in contents else b"|".join(content for content in contents if content is not None)
