"""Which rows of which data set a script's loaders have, read when the recording is over (worker's side).

A row is known by its index where all ranks have the same data set, and otherwise by its content. Both are read with
the same random numbers on every rank, so that an augmentation makes no difference. Not covered: data sets that cannot
be indexed, of which only what the model was given is known.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset

from suite.room import accelerator
from suite.script import trees
from suite.script.draws import Draws

MOST_INDICES = 2_000_000  # of one epoch
MOST_ROWS = 512  # whose content is read
PATIENCE_S = 3.0  # for one data set
PRINTS = 4  # rows by which two ranks' data sets are told apart


def described(draws: Draws) -> list[dict[str, Any]]:
    """Return what is known of each loader: those that trained first, in the order of their first draw."""
    others = [loader for loader in draws.loaders if not any(loader is one for one in draws.trained)]
    every = [*((loader, True) for loader in draws.trained), *((loader, False) for loader in others)]
    return [_described(loader, draws, trains=trains) for loader, trains in every]


def _described(loader: DataLoader[Any], draws: Draws, *, trains: bool) -> dict[str, Any]:
    base, of_base = _resolved(loader.dataset)
    sampler: Any = loader.sampler
    batches: Any = loader.batch_sampler
    of_sampler = batches is None or getattr(batches, "sampler", None) is sampler
    distributed = isinstance(sampler, DistributedSampler)
    known: dict[str, Any] = {"length": -1, "rows_of_dataset": -1, "rows": None, "everything": None, "prints": []}
    known["contents"] = []
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
    parts = [value[key] for key in value.keys()] if hasattr(value, "keys") else value  # noqa: SIM118
    if not isinstance(parts, (list, tuple)):
        return None
    contents = [_content(part) for part in parts]
    return None if None in contents else b"|".join(content for content in contents if content is not None)
