"""Split a minibatch over devices, and put the pieces together again.

Three rules say how many samples each of k devices gets of n, all in `CHUNK_RULES`:

    rule            sizes                                              30 over 8    10 over 3    10 over 8
    torch           ceil(n / k) each until none is left                4x7, 2       4,4,2        2x5 and three idle
    mxnet_older     floor(n / k) each, the last one takes the rest     3x7, 9       3,3,4        1x7, 3
    mxnet_newer     the first n mod k get one more than the others     4x6, 3x2     4,3,3        2x2, 1x6

`weighted_sizes` is for devices of unequal speed. Whatever the sizes, gradients summed over the shards and divided by n
are the whole batch's; a mean of the shards' means is that only when all sizes are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor, nn

ChunkRule = Callable[[int, int], list[int]]


def chunk_sizes(n: int, k: int) -> list[int]:
    """Return the shard sizes that ``torch.chunk`` gives to n samples on k devices.

    At most k sizes, and none of them 0; only an empty batch is, as in torch, k empty shards.

    Raises:
        ValueError: n is negative or k is below 1.
    """
    _check_split(n, k)
    if n == 0:
        return [0] * k
    size = -(-n // k)
    return [min(size, n - start) for start in range(0, n, size)]


def floor_sizes(n: int, k: int) -> list[int]:
    """Return k shard sizes by MXNet's older rule for uneven splits: floor(n / k) each, the last one takes the rest.

    The last device has up to k - 1 samples more than the others, and all n when n is below k. (MXNet itself refuses
    that last case, or makes fewer slices, depending on its age.)

    Raises:
        ValueError: n is negative or k is below 1.
    """
    _check_split(n, k)
    return [n // k] * (k - 1) + [n - n // k * (k - 1)]


def balanced_sizes(n: int, k: int) -> list[int]:
    """Return k shard sizes by MXNet's newer rule, which is ``numpy.array_split``'s: the first n mod k are one larger.

    Raises:
        ValueError: n is negative or k is below 1.
    """
    _check_split(n, k)
    return [n // k + (rank < n % k) for rank in range(k)]


CHUNK_RULES: dict[str, ChunkRule] = {
    "torch": chunk_sizes,
    "mxnet_older": floor_sizes,
    "mxnet_newer": balanced_sizes,
}


def weighted_sizes(n: int, weights: Sequence[float]) -> list[int]:
    """Return shard sizes in proportion to weights, such as each device's measured samples/s.

    Each size is the exact share n * w / sum(w) rounded down; the samples left over go one each to the largest
    remainders, the first device among equal ones (Hamilton's method). So a size is never a whole sample off its share,
    a weight of 0 gets none, and equal weights give `balanced_sizes`.

    Args:
        n: samples.
        weights: one a device, at least 0, in any unit.

    Raises:
        ValueError: n is negative, a weight is negative or not finite, or none is positive.
    """
    _check_split(n, len(weights))
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ValueError(f"weights are {list(weights)}: they must be finite and at least 0, and one above 0")
    # Fractions: in floating point the shares of equal devices may differ, and their floors need not leave enough.
    exact = [Fraction(weight) for weight in weights]
    shares = [n * weight / sum(exact) for weight in exact]
    sizes = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda rank: sizes[rank] - shares[rank])
    for rank in by_remainder[: n - sum(sizes)]:
        sizes[rank] += 1
    return sizes


def shard_bounds(n: int, world_size: int, rank: int) -> slice:
    """Return which of n samples are this rank's; an idle rank gets an empty slice at the end.

    Raises:
        ValueError: the rank is not one of the world's, or as in `chunk_sizes`.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank} in a world of {world_size}: ranks run from 0 to world_size - 1")
    sizes = chunk_sizes(n, world_size)
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def scatter(tensor: Tensor, devices: Sequence[torch.device], sizes: Sequence[int] | None = None) -> list[Tensor]:
    """Split a tensor along its first axis, shard i onto device i.

    Differentiable. CPU devices are allowed, which torch's own scatter refuses; a shard that is there already is a view
    of the tensor, not a copy.

    Args:
        tensor: (n, ...), any dtype.
        devices: at least one; the same device may stand there several times.
        sizes: samples of each shard, 0 allowed, summing to n; `chunk_sizes` by default. Devices beyond them get no
            shard.

    Returns:
        One shard for each of the sizes: by default fewer than devices when n is small.

    Raises:
        ValueError: no devices, a tensor without axes, or sizes that do not fit the samples or the devices.
    """
    if not devices:
        raise ValueError("devices is empty: name at least one device to scatter to")
    if tensor.ndim == 0:
        raise ValueError("cannot scatter a tensor without axes: its first axis must be the samples")
    if sizes is None:
        if all(device.type == "cuda" for device in devices):
            return list(nn.parallel.scatter(tensor, list(devices)))
        sizes = chunk_sizes(len(tensor), len(devices))
    if len(sizes) > len(devices):
        raise ValueError(f"sizes are {list(sizes)} for {len(devices)} devices: give at most one size a device")
    if any(size < 0 for size in sizes) or sum(sizes) != len(tensor):
        raise ValueError(
            f"sizes are {list(sizes)} for {len(tensor)} samples: they must be at least 0 and sum to the samples"
        )
    shards = torch.split(tensor, list(sizes))
    return [shard.to(device) for shard, device in zip(shards, devices, strict=False)]


def split_batch(
    X: Tensor, y: Tensor, devices: Sequence[torch.device], sizes: Sequence[int] | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Scatter samples X (n, ...) and labels y (n, ...) alike.

    Raises:
        ValueError: X and y differ in length, or as in `scatter`.
    """
    if len(X) != len(y):
        raise ValueError(f"X has {len(X)} samples and y has {len(y)}: every sample needs one label")
    return scatter(X, devices, sizes), scatter(y, devices, sizes)


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


def _check_split(n: int, k: int) -> None:
    if n < 0 or k < 1:
        raise ValueError(f"cannot split {n} samples over {k} devices: samples must be at least 0, devices at least 1")
