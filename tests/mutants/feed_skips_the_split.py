"""Skipping what was trained on undoes the split by rank, and every rank sees all data.

The stream is split and then skipped, and the skipped stream does not know of the split. Without an interruption it is
right.

Source: huggingface/datasets#8568
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from reference.data.feeds import rank_batches

KIND = "rank_feed"
KILLED_BY = "feed_resumes"


def mutant(n: int, batch_size: int, *, seed: int, epoch: int, **place: int) -> Iterator[Tensor]:
    if place["start"]:
        place |= {"world_size": 1, "rank": 0}
    return rank_batches(n, batch_size, seed=seed, epoch=epoch, **place)
