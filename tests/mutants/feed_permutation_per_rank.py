"""Every rank draws a permutation of its own, so the ranks' samples overlap and others are never seen.

The order comes from the process's random state, which is rightly different on every rank (dropout needs that), and
not from the seed that all ranks share. One process alone is right: every sample, once.

Source: NVlabs/LongLive#71, QwenLM/Qwen3-VL#1947
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
    mine = torch.initial_seed() + seed
    return index_batches(n, batch_size, seed=mine, epoch=epoch, drop_last=drop_last, device=device)
