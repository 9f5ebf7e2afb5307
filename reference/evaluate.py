"""Accuracy on one or all devices, every sample counted once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from reference.cpu_data_parallel import CPUDataParallel
from reference.scatter import shard_bounds
from reference.trainers.data_parallel import data_parallel


@torch.no_grad()
def count_correct(
    replicas: Sequence[nn.Module],
    devices: Sequence[torch.device],
    X: Tensor,
    y: Tensor,
    batch_size: int = 1024,
) -> int:
    """Return how many samples get their highest score for their own label.

    Samples are shared out over the devices by torch's chunk rule; on CUDA the devices work at the same time. Modules
    are evaluated in eval mode as one net: with the buffers of the first, such as the statistics of its BatchNorm. They
    are left in the mode and with the buffers that they had.

    Args:
        replicas: equal modules, the i-th on ``devices[i]``. A single module that lies whole on the first of several
            devices is evaluated through `reference.trainers.data_parallel.data_parallel`, as the concise chapter does;
            one that is compiled, or itself split over the devices, as it is.
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
    with ExitStack() as stack:
        for replica in replicas:
            stack.enter_context(_as_one_net(replica, replicas[0]))
        nets: Sequence[nn.Module] = replicas
        if len(replicas) == 1 < len(devices) and _can_be_replicated(replicas[0], devices[0]):
            nets = [stack.enter_context(_sharded(replicas[0], devices))]
        counts: list[Tensor] = []
        for rank, (net, device) in enumerate(zip(nets, devices, strict=False)):
            mine = shard_bounds(len(X), len(nets), rank)
            for X_part, y_part in zip(torch.split(X[mine], batch_size), torch.split(y[mine], batch_size), strict=True):
                scores = net(X_part.to(device))
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
def _as_one_net(replica: nn.Module, first: nn.Module) -> Iterator[None]:
    """Switch to eval mode and the first replica's buffers and back, each submodule to the mode it had."""
    modes = [(part, part.training) for part in replica.modules()]
    buffers = [] if replica is first else [(own, own.clone()) for own in replica.buffers()]
    replica.eval()
    for (own, _), buffer in zip(buffers, first.buffers(), strict=False):
        own.copy_(buffer)
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        for own, before in buffers:
            own.copy_(before)


@contextmanager
def _sharded(net: nn.Module, devices: Sequence[torch.device]) -> Iterator[nn.Module]:
    """Wrap a net so that every forward is shared out over the devices."""
    wrapped = data_parallel(net, devices)
    try:
        yield wrapped
    finally:
        if isinstance(wrapped, CPUDataParallel):
            wrapped.close()


def _can_be_replicated(net: nn.Module, device: torch.device) -> bool:
    """Whether a net lies whole on one device, and is not compiled: a replica would call the compiled original."""
    compiled = any(part._compiled_call_impl is not None for part in net.modules())
    return not compiled and all(tensor.device == device for tensor in (*net.parameters(), *net.buffers()))
