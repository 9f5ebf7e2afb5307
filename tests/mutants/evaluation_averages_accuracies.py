"""Every rank's accuracy has the same weight, however few samples it has.

An all-reduce of the accuracies, divided by the world size. It is right on shards of equal size, and off by a fraction
of a percent otherwise: 10 samples on 3 devices give those of the last one twice the weight.

Source: pytorch/examples#905, horovod/horovod#2897
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
    accuracies = []
    for rank, (replica, device) in enumerate(zip(replicas, devices, strict=False)):
        mine = shard_bounds(len(X), len(replicas), rank)
        if len(X[mine]):
            accuracies.append(count_correct([replica], [device], X[mine], y[mine], batch_size) / len(X[mine]))
    return round(sum(accuracies) / max(1, len(accuracies)) * len(X))
