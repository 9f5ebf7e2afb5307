"""Repeated samples count in the accuracy, because the test set is padded until the devices divide it.

DistributedSampler repeats the first samples so that every rank has equally many; summed over the ranks, they count
twice. With 10,000 samples and 8 devices nothing is repeated, with 10,001 seven are: the third digit at most.

Source: pytorch/pytorch#25162
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.evaluate import count_correct

KIND = "evaluation"
KILLED_BY = "evaluation_counts_once"


def mutant(
    replicas: Sequence[nn.Module], devices: Sequence[torch.device], X: Tensor, y: Tensor, batch_size: int = 1024
) -> int:
    k = len(replicas)
    indices = list(range(len(X)))
    indices += indices[: -len(indices) % k]
    correct = 0
    for rank in range(k):
        mine = indices[rank::k]
        correct += count_correct([replicas[rank]], [devices[rank]], X[mine], y[mine], batch_size)
    return correct
