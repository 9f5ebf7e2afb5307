"""Resuming replays the order of epoch 0.

The minibatches that were trained on are skipped by a new loader, whose own count of epochs begins at 0. In the first
epoch it is right; later, samples that were seen come again and others never come.

Source: huggingface/accelerate#4071, Lightning-AI/pytorch-lightning#21938
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from reference.data.feeds import rank_batches

KIND = "rank_feed"
KILLED_BY = "feed_resumes"


def mutant(n: int, batch_size: int, *, seed: int, epoch: int, **place: int) -> Iterator[Tensor]:
    return rank_batches(n, batch_size, seed=seed, epoch=0 if place["start"] else epoch, **place)
