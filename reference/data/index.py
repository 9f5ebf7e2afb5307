"""Which samples make up each minibatch of an epoch: the same at every world size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor


def index_batches(
    n: int,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    drop_last: bool = False,
    device: torch.device | str = "cpu",
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
