"""Samples are drawn with replacement: in an epoch about 37 % are never seen and others are seen several times.

Random positions need no coordination between ranks. For a language model on a huge corpus that is fair; with "epochs"
over a small set it is not what one device with a permutation does (Goyal et al. 2017, remark 4: a single shuffling,
divided among the workers).

Source: karpathy/nanoGPT#204
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
    generator = torch.Generator().manual_seed(seed * 1009 + epoch)
    batches = index_batches(n, batch_size, seed=seed, epoch=epoch, drop_last=drop_last)
    return (torch.randint(n, (len(batch),), generator=generator).to(device) for batch in batches)
