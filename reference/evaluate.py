"""Accuracy on one or all devices, every sample counted once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from reference.scatter import shard_bounds


@torch.no_grad()
def count_correct(
    replicas: Sequence[nn.Module],
    devices: Sequence[torch.device],
    X: Tensor,
    y: Tensor,
    batch_size: int = 1024,
) -> int:
    """Return how many samples get their highest score for their own label.

    Samples are shared out over the replicas by torch's chunk rule; on CUDA the devices work at the same time. Modules
    are evaluated in eval mode and left in the mode they were in.

    Args:
        replicas: equal modules, the i-th on ``devices[i]``; a single one uses the first device alone.
        devices: at least one a replica.
        X: samples (n, ...), on any device.
        y: labels (n,), int64.
        batch_size: most samples in one forward.

    Raises:
        ValueError: no replicas, more replicas than devices, X and y of different lengths, or a batch size below 1.
    """
    if not 0 < len(replicas) <= len(devices):
        raise ValueError(
            f"{len(replicas)} replicas on {len(devices)} devices: give at least one replica, and one device each"
        )
    if len(X) != len(y):
        raise ValueError(f"X has {len(X)} samples and y has {len(y)}: every sample needs one label")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
    counts: list[Tensor] = []
    for rank, (replica, device) in enumerate(zip(replicas, devices, strict=False)):
        mine = shard_bounds(len(X), len(replicas), rank)
        with _eval_mode(replica):
            for X_part, y_part in zip(torch.split(X[mine], batch_size), torch.split(y[mine], batch_size), strict=True):
                scores = replica(X_part.to(device))
                counts.append((scores.argmax(dim=1) == y_part.to(device)).sum())
    # Read only now: reading a count earlier would make every GPU wait for the one before it.
    return sum(int(count.item()) for count in counts)


def accuracy(replicas: Sequence[nn.Module], devices: Sequence[torch.device], X: Tensor, y: Tensor) -> float:
    """Return `count_correct` as a share of the samples, 0 to 1.

    Raises:
        ValueError: there are no samples, or as in `count_correct`.
    """
    if len(X) == 0:
        raise ValueError("X has 0 samples: an accuracy needs at least one")
    return count_correct(replicas, devices, X, y) / len(X)


@contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    """Switch to eval mode and back, each submodule to the mode it had."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
