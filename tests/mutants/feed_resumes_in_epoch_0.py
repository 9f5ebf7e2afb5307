"""Resuming replays the order of epoch 0.

The minibatches that were trained on are skipped by a new loader, whose own count of epochs begins at 0. In the first
epoch it is right; later, samples that were seen come again and others never come.

Source: huggingface/accelerate#4071, Lightning-AI/pytorch-lightning#21938
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
    place = {"world_size": world_size, "rank": rank, "start": start}
    return rank_batches(n, batch_size, seed=seed, epoch=0 if start else epoch, **place)
