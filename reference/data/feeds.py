"""One epoch of minibatches for one rank: the same samples at every world size, from tensors or the book's loader."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from reference import nest
from reference.data.dataset import Dataset
from reference.nest import Nest
from reference.scatter import shard_bounds

Shards = Callable[[torch.device], Iterator[Tensor]]  # from the device of the indices
Feed = Iterator[tuple[Nest, Nest]]


def index_batches(
    n: int, batch_size: int, *, seed: int, epoch: int, drop_last: bool = False, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """Yield the indices of a permutation of n samples, (b,) int64, a batch at a time.

    Args:
        n: number of samples.
        batch_size: at least 1, else ValueError; the last batch may be smaller.
        seed, epoch: determine the permutation together, on any device.
        drop_last: leave out a last batch that is smaller than the others.
        device: the indices' device. All are moved there at once, because the caller has to wait for every move.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
    # Hashed, because seed + epoch would make epoch 1 of seed 0 the same as epoch 0 of seed 1.
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
    batches = torch.split(torch.randperm(n, generator=generator).to(device), batch_size)
    return (batch for batch in batches if len(batch) == batch_size or not (drop_last or len(batch) == 0))


def rank_batches(
    n: int,
    batch_size: int,
    *,
    world_size: int,
    rank: int,
    seed: int,
    epoch: int,
    start: int = 0,
    drop_last: bool = False,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """Yield one rank's part of the batches of `index_batches`, by torch's chunk rule; it may be empty.

    Args:
        n, batch_size, seed, epoch, drop_last, device: as in `index_batches`, over all ranks.
        world_size, rank: number of ranks, and this one, from 0.
        start: leave out so many batches of the epoch, which were trained on before an interruption.

    Raises:
        ValueError: a rank outside the world, ``batch_size`` below 1, or ``start`` below 0.
    """
    if start < 0:
        raise ValueError(f"start is {start}: it must be at least 0")
    shard_bounds(0, world_size, rank)  # a wrong rank is reported here, not at the first batch
    batches = index_batches(n, batch_size, seed=seed, epoch=epoch, drop_last=drop_last, device=device)
    return (batch[shard_bounds(len(batch), world_size, rank)] for batch in islice(batches, start, None))


def feed(
    dataset: Dataset,
    loader: str,
    batch_size: int,
    *,
    world_size: int = 1,
    rank: int = 0,
    device: torch.device | str = "cpu",
    seed: int = 0,
    epoch: int = 0,
    start: int = 0,
    drop_last: bool = False,
    num_workers: int = 4,
    cpus: set[int] | None = None,
) -> Feed:
    """Yield this rank's part of the minibatches of one epoch of the training samples, the same ones for every loader.

    Args:
        dataset: on ``device`` for the resident loader, on any device for the book's.
        loader: a name in `LOADERS`.
        batch_size, world_size, rank, seed, epoch, start, drop_last: as in `rank_batches`.
        device: of the samples (b, ...) and labels (b,) that are yielded, or of nests like those of the data set.
        num_workers: worker processes of the book's loader; 0 reads in this process.
        cpus: cores that those processes may use; by default the caller's, which may be the one core of a bound rank.

    Raises:
        ValueError: unknown loader, with the resident loader a data set on another device, or as in `rank_batches`.
    """
    if loader not in LOADERS:
        raise ValueError(f"unknown loader {loader!r}: choose one of {', '.join(LOADERS)}")
    n = nest.samples(dataset.train_X)
    place = {"world_size": world_size, "rank": rank, "epoch": epoch, "start": start}

    def shards(indices_on: torch.device) -> Iterator[Tensor]:
        return rank_batches(n, batch_size, **place, seed=seed, drop_last=drop_last, device=indices_on)

    return LOADERS[loader](dataset, shards, torch.device(device), num_workers, cpus)


def resident_feed(
    dataset: Dataset, shards: Shards, device: torch.device, num_workers: int, cpus: set[int] | None
) -> Feed:
    """Select the samples from tensors on the device, without worker processes."""
    device = torch.empty(0, device=device).device  # the device of a tensor on "cuda" is "cuda:0"
    for leaf in nest.leaves((dataset.train_X, dataset.train_y)):
        if leaf.device != device:
            raise ValueError(f"the data set is on {leaf.device}, the feed on {device}: use dataset.to(device) once")
    return ((nest.take(dataset.train_X, i), nest.take(dataset.train_y, i)) for i in shards(device))


def book_feed(dataset: Dataset, shards: Shards, device: torch.device, num_workers: int, cpus: set[int] | None) -> Feed:
    """Read sample by sample through torch's DataLoader and ToTensor, then move each batch, as the documents do."""
    indices = [shard.tolist() for shard in shards(torch.device("cpu"))]
    batches = iter(
        DataLoader(
            dataset.train_samples,
            batch_sampler=[shard for shard in indices if shard],
            num_workers=num_workers,
            worker_init_fn=partial(_use_cores, cpus),
        )
    )
    # Empty shards do not go through the loader, which cannot stack zero samples.
    pair = (dataset.train_X, dataset.train_y)
    empty = nest.leaves(nest.take(pair, slice(0)))
    parts = (next(batches) if shard else empty for shard in indices)
    return (nest.like(pair, [tensor.to(device) for tensor in part]) for part in parts)


LOADERS: dict[str, Callable[[Dataset, Shards, torch.device, int, set[int] | None], Feed]] = {
    "resident": resident_feed,
    "book": book_feed,
}


def _use_cores(cpus: set[int] | None, worker: int) -> None:
    if cpus is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
