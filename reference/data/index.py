"""Which samples make up each minibatch of an epoch: the same at every world size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from reference.scatter import shard_bounds


def index_batches(
    n: int, batch_size: int, *, seed: int, epoch: int, drop_last: bool = False, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """Yield a permutation of n samples, a batch at a time.

    Args:
        n: number of samples.
        batch_size: samples in a batch; the last one may be smaller.
        seed: determines the permutation together with ``epoch``, on any device.
        epoch: from 0.
        drop_last: leave out a last batch that is smaller than the others.
        device: the indices' device. All are moved there at once, because the caller has to wait for every move.

    Yields:
        Indices (b,), int64.

    Raises:
        ValueError: ``batch_size`` is below 1.
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
    """Yield one rank's part of the batches of `index_batches`, by torch's chunk rule.

    Args:
        n: number of samples.
        batch_size: samples in a batch over all ranks.
        world_size: number of ranks.
        rank: this rank, from 0.
        seed: as in `index_batches`.
        epoch: from 0.
        start: leave out so many batches of the epoch, which were trained on before an interruption.
        drop_last: as in `index_batches`.
        device: the indices' device.

    Yields:
        Indices (b,), int64; b may be 0.

    Raises:
        ValueError: a rank outside the world, ``batch_size`` below 1, or ``start`` below 0.
    """
    if start < 0:
        raise ValueError(f"start is {start}: it must be at least 0")
    shard_bounds(0, world_size, rank)  # a wrong rank is reported here, not at the first batch
    batches = index_batches(n, batch_size, seed=seed, epoch=epoch, drop_last=drop_last, device=device)
    return (batch[shard_bounds(len(batch), world_size, rank)] for batch in islice(batches, start, None))
