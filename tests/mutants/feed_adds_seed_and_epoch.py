"""Runs with neighbouring seeds see the same orders, one epoch apart.

The permutation is drawn with seed + epoch, so epoch 1 of seed 0 is epoch 0 of seed 1. Each run by itself is right;
five seeds over ten epochs are 14 permutations and not 50, and their spread is too small.

Source: pytorch/pytorch, torch/utils/data/distributed.py (``manual_seed(self.seed + self.epoch)``)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

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
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).to(device)
    return (b for b in order.split(batch_size) if len(b) == batch_size or not (drop_last or len(b) == 0))
