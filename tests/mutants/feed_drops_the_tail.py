"""The last, smaller minibatch of every epoch is dropped without having been asked for.

It would have been uneven, and uneven batches used to crash or freeze a run, so the default was changed for everybody.
It is right when the batch size divides the data set; a set smaller than one batch gives an epoch of nothing.

Source: criteo/tf-yarn#79
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
    drop_last: bool = True,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    return index_batches(n, batch_size, seed=seed, epoch=epoch, drop_last=True, device=device)
