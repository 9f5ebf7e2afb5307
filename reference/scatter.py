"""Split a minibatch over devices by torch's chunk rule, and put the pieces together again.

With n samples on k devices a shard has c = ceil(n / k) samples, there are ceil(n / c) shards, and the last one has what
is left: 10 samples on 8 devices make five shards of 2, and three devices stay idle.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def chunk_sizes(n: int, k: int) -> list[int]:
    """Return the shard sizes that ``torch.chunk`` gives to n samples on k devices.

    At most k sizes, and none of them 0; only an empty batch is, as in torch, k empty shards.

    Raises:
        ValueError: n is negative or k is below 1.
    """
    if n < 0 or k < 1:
        raise ValueError(f"cannot split {n} samples over {k} devices: samples must be at least 0, devices at least 1")
    if n == 0:
        return [0] * k
    size = -(-n // k)
    return [min(size, n - start) for start in range(0, n, size)]


def shard_bounds(n: int, world_size: int, rank: int) -> slice:
    """Return which of n samples are this rank's; an idle rank gets an empty slice at the end.

    Raises:
        ValueError: the rank is not one of the world's, or as in `chunk_sizes`.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank} in a world of {world_size}: ranks run from 0 to world_size - 1")
    sizes = chunk_sizes(n, world_size)
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def scatter(tensor: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    """Split a tensor along its first axis, shard i onto device i.

    Differentiable. CPU devices are allowed, which torch's own scatter refuses; a shard that is there already is a view
    of the tensor, not a copy.

    Args:
        tensor: (n, ...), any dtype.
        devices: at least one; the same device may stand there several times.

    Returns:
        One shard for each of `chunk_sizes`: fewer than devices when n is small.

    Raises:
        ValueError: no devices, or a tensor without axes.
    """
    if not devices:
        raise ValueError("devices is empty: name at least one device to scatter to")
    if tensor.ndim == 0:
        raise ValueError("cannot scatter a tensor without axes: its first axis must be the samples")
    if all(device.type == "cuda" for device in devices):
        return list(nn.parallel.scatter(tensor, list(devices)))
    shards = torch.split(tensor, chunk_sizes(len(tensor), len(devices)))
    return [shard.to(device) for shard, device in zip(shards, devices, strict=False)]


def split_batch(X: Tensor, y: Tensor, devices: Sequence[torch.device]) -> tuple[list[Tensor], list[Tensor]]:
    """Scatter samples X (n, ...) and labels y (n, ...) alike.

    Raises:
        ValueError: X and y differ in length, or as in `scatter`.
    """
    if len(X) != len(y):
        raise ValueError(f"X has {len(X)} samples and y has {len(y)}: every sample needs one label")
    return scatter(X, devices), scatter(y, devices)


def gather(shards: Sequence[Tensor], device: torch.device) -> Tensor:
    """Concatenate shards along the first axis on one device; scalars become a vector, as in nn.DataParallel.

    Differentiable. The inverse of `scatter`.

    Args:
        shards: at least one tensor (n_i, ...), or () for all of them.
        device: where the result lies.

    Raises:
        ValueError: there are no shards.
    """
    if not shards:
        raise ValueError("there are no shards to gather: give at least one tensor")
    there = [shard.to(device) for shard in shards]
    return torch.stack(there) if there[0].ndim == 0 else torch.cat(there)
