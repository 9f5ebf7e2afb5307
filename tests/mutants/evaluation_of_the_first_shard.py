"""The accuracy is that of rank 0's samples, taken for all of them.

Every rank evaluates its part and rank 0 prints its own result; the reduction is missing. The figure is an honest
estimate, only noisier, and equal to the right one when all samples are right or all are wrong. One device is right.

Source: Nota-NetsPresso/netspresso-trainer#342, NVIDIA/apex#22
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.evaluate import count_correct
from reference.scatter import shard_bounds

KIND = "evaluation"
KILLED_BY = "evaluation_counts_once"


def mutant(
    replicas: Sequence[nn.Module], devices: Sequence[torch.device], X: Tensor, y: Tensor, batch_size: int = 1024
) -> int:
    if len(X) == 0:
        return 0
    mine = shard_bounds(len(X), len(replicas), 0)
    correct = count_correct(replicas[:1], devices[:1], X[mine], y[mine], batch_size)
    return round(correct / len(X[mine]) * len(X))
