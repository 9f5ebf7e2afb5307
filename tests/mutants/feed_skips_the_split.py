"""Skipping what was trained on undoes the split by rank, and every rank sees all data.

The stream is split and then skipped, and the skipped stream does not know of the split. Without an interruption it is
right.

Source: huggingface/datasets#8568
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from reference.data.index import rank_batches

KIND = "rank_feed"
KILLED_BY = "feed_resumes"


def mutant(
    n: int,
    batch_size: int,
    *,
    world_size: int,
    rank: int,
    seed: int,
    epoch: int,
    start: int = 0,
) -> Iterator[Tensor]:
    place = {"world_size": 1, "rank": 0} if start else {"world_size": world_size, "rank": rank}
    return rank_batches(n, batch_size, seed=seed, epoch=epoch, start=start, **place)
