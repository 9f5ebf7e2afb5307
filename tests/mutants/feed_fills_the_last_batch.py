"""The last minibatch is filled up with samples from the beginning of the epoch.

Static shapes want full batches. Every sample is seen, some of them twice, and more often when the set is small. It is
right when the batch size divides the data set.

Source: pytorch/pytorch#22584, PaddlePaddle/Paddle#59390
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from reference.data.feeds import index_batches

KIND = "feed"
KILLED_BY = "feed_covers"


def mutant(
    n: int,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    drop_last: bool = False,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    batches = list(index_batches(n, batch_size, seed=seed, epoch=epoch, drop_last=False, device=device))
    missing = -n % batch_size
    if missing:
        batches[-1] = torch.cat([batches[-1], torch.cat(batches)[torch.arange(missing) % n]]).to(device)
    return iter(batches)
