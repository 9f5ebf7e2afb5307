"""Totals are summed over the ranks after every batch, so that what was summed already is summed again.

The counter that a rank keeps is all-reduced in place each time it is shown. With one rank, or one batch, it is right;
otherwise it grows exponentially, and a ratio of two such counters still looks like an accuracy.

Source: facebookresearch/fairchem#75
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor, nn

from reference.evaluate import count_correct
from reference.scatter import shard_bounds

KIND = "evaluation"
KILLED_BY = "evaluation_counts_once"


def mutant(
    replicas: Sequence[nn.Module], devices: Sequence[torch.device], X: Tensor, y: Tensor, batch_size: int = 1024
) -> int:
    k = len(replicas)
    batches = [torch.arange(len(X))[shard_bounds(len(X), k, rank)].split(batch_size) for rank in range(k)]
    totals = [0] * k
    for row in zip_longest(*batches, fillvalue=torch.empty(0, dtype=torch.int64)):
        for rank, indices in enumerate(row):
            part = count_correct([replicas[rank]], [devices[rank]], X[indices], y[indices], batch_size)
            totals[rank] += part
        totals = [sum(totals)] * k
    return totals[0]
