"""Split a minibatch over devices, and join the shards again.

The three rules in `CHUNK_RULES` say how many of n samples each of k devices gets. They raise ValueError where n is
negative or k below 1.

    rule            sizes                                              30 over 8    10 over 3    10 over 8
    torch           ceil(n / k) each until none is left                4x7, 2       4,4,2        2x5 and three idle
    mxnet_older     floor(n / k) each, the last one takes the rest     3x7, 9       3,3,4        1x7, 3
    mxnet_newer     the first n mod k get one more than the others     4x6, 3x2     4,3,3        2x2, 1x6

`weighted_sizes` is for devices of unequal speed. For any sizes, gradients summed over the shards and divided by n are
the whole batch's; a mean of the shards' means is equal to it only when all sizes are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor, nn

from reference import nest
from reference.nest import Nest

ChunkRule = Callable[[int, int], list[int]]


def chunk_sizes(n: int, k: int) -> list[int]:
    """Return the shard sizes that ``torch.chunk`` gives to n samples on k devices.

    There are at most k sizes, and none is 0. The exception, as in torch, is an empty batch: it gives k empty shards.
    """
    _check_split(n, k)
    if n == 0:
        return [0] * k
    size = -(-n // k)
    return [min(size, n - start) for start in range(0, n, size)]


def floor_sizes(n: int, k: int) -> list[int]:
    """Return k shard sizes by MXNet's older rule for uneven splits: floor(n / k) each, the last one takes the rest.

    The last device has up to k - 1 samples more than the others, and all n where n is below k. (Some versions of MXNet
    refuse this last case, others make fewer slices.)
    """
    _check_split(n, k)
    return [n // k] * (k - 1) + [n - n // k * (k - 1)]


def balanced_sizes(n: int, k: int) -> list[int]:
    """Return k shard sizes by MXNet's newer rule, ``numpy.array_split``'s: the first n mod k are one larger."""
    _check_split(n, k)
    return [n // k + (rank < n % k) for rank in range(k)]


CHUNK_RULES: dict[str, ChunkRule] = {"torch": chunk_sizes, "mxnet_older": floor_sizes, "mxnet_newer": balanced_sizes}


def weighted_sizes(n: int, weights: Sequence[float]) -> list[int]:
    """Return shard sizes in proportion to weights, such as each device's measured samples/s.

    Each size is the exact share n * w / sum(w) rounded down. The remaining samples go one each to the devices with the
    largest remainders, earlier devices first among equal ones (Hamilton's method). So a size differs from its share by
    less than one sample, a weight of 0 gets no samples, and equal weights give `balanced_sizes`.

    Raises:
        ValueError: n is negative, a weight is negative or not finite, or no weight is positive.
    """
    _check_split(n, len(weights))
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ValueError(f"weights are {list(weights)}: they must be finite and at least 0, and one above 0")
    # Fractions, because floating-point shares of equal devices may differ, and their floors may sum to more than n.
    exact = [Fraction(weight) for weight in weights]
    shares = [n * weight / sum(exact) for weight in exact]
    sizes = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda rank: sizes[rank] - shares[rank])
    for rank in by_remainder[: n - sum(sizes)]:
        sizes[rank] += 1
    return sizes


def shard_bounds(n: int, world_size: int, rank: int) -> slice:
    """Return which of n samples are this rank's, by torch's chunk rule; an idle rank gets an empty slice at the end.

    Raises:
        ValueError: the rank is not below ``world_size``, or as in `chunk_sizes`.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank} in a world of {world_size}: ranks run from 0 to world_size - 1")
    sizes = chunk_sizes(n, world_size)
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def scatter(minibatch: Nest, devices: Sequence[torch.device], sizes: Sequence[int] | None = None) -> list[Nest]:
    """Split a tensor, or every tensor of a nest, along the first axis and put shard i on device i.

    Differentiable. Unlike torch's own scatter it accepts CPU devices. A shard whose device is the tensor's own is a
    view of the tensor, not a copy.

    Args:
        minibatch: a tensor (n, ...) of any dtype, or a nest of such tensors.
        devices: at least one; a device may be listed several times.
        sizes: samples of each shard, 0 allowed, summing to n; `chunk_sizes` by default. Where there are fewer sizes
            than devices, as by default when n is small, the last devices get no shard.

    Raises:
        ValueError: no devices, a tensor without axes, tensors of different lengths, or sizes that do not fit.
    """
    if not devices:
        raise ValueError("devices is empty: name at least one device to scatter to")
    if not isinstance(minibatch, Tensor):
        nest.samples(minibatch)
        by_tensor = [scatter(leaf, devices, sizes) for leaf in nest.leaves(minibatch)]
        return [nest.like(minibatch, list(shards)) for shards in zip(*by_tensor, strict=True)]
    tensor = minibatch
    if tensor.ndim == 0:
        raise ValueError("cannot scatter a tensor without axes: its first axis must be the samples")
    if sizes is None:
        if all(device.type == "cuda" for device in devices):
            return list(nn.parallel.scatter(tensor, list(devices)))
        sizes = chunk_sizes(len(tensor), len(devices))
    if len(sizes) > len(devices):
        raise ValueError(f"sizes are {list(sizes)} for {len(devices)} devices: give at most one size per device")
    if any(size < 0 for size in sizes) or sum(sizes) != len(tensor):
        raise ValueError(
            f"sizes are {list(sizes)} for {len(tensor)} samples: they must be at least 0 and sum to the samples"
        )
    shards = torch.split(tensor, list(sizes))
    return [shard.to(device) for shard, device in zip(shards, devices, strict=False)]


def split_batch(
    X: Nest, y: Nest, devices: Sequence[torch.device], sizes: Sequence[int] | None = None
) -> tuple[list[Nest], list[Nest]]:
    """Scatter samples X and labels y in the same way; each is a tensor (n, ...) or a nest of them.

    Raises:
        ValueError: X and y differ in length, or as in `scatter`.
    """
    check_labels(X, y)
    return scatter(X, devices, sizes), scatter(y, devices, sizes)


def gather(shards: Sequence[Tensor], device: torch.device) -> Tensor:
    """Concatenate shards along the first axis on one device; scalars become a vector, as in nn.DataParallel.

    Differentiable. The inverse of `scatter`. Shards are all (n_i, ...), or all (); ValueError where there are none.
    """
    if not shards:
        raise ValueError("there are no shards to gather: give at least one tensor")
    moved = [shard.to(device) for shard in shards]
    return torch.stack(moved) if moved[0].ndim == 0 else torch.cat(moved)


def check_labels(X: Nest, y: Nest) -> None:
    """Raise ValueError if samples X and labels y, each a tensor (n, ...) or a nest of them, differ in number."""
    if (n := nest.samples(X)) != (labels := nest.samples(y)):
        raise ValueError(f"X has {n} samples and y has {labels}: every sample needs one label")


def _check_split(n: int, k: int) -> None:
    if n < 0 or k < 1:
        raise ValueError(f"cannot split {n} samples over {k} devices: samples must be at least 0, devices at least 1")
