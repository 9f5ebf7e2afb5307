"""Every epoch has the same minibatches in the same order.

DistributedSampler shuffles by seed + epoch, and it learns the epoch from ``set_epoch``, which nothing reminds one to
call. The first epoch is right, every sample is seen once an epoch, and the accuracy suffers a little.

Source: pytorch/pytorch#31771, pytorch/pytorch#11324
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from reference.data.feeds import index_batches

KIND = "feed"
KILLED_BY = "feed_reshuffles"


def mutant(
    n: int,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    drop_last: bool = False,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    return index_batches(n, batch_size, seed=seed, epoch=0, drop_last=drop_last, device=device)
