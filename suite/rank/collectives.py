"""All-reduce as a worker times it: one message size, one algorithm, one window (worker's side).

Two kinds of algorithms. A backend's own (`gloo`, `nccl`) goes through `torch.distributed` with a process for each
device, as DistributedDataParallel's exchange does. Those of `reference.all_reduce` run in one process over all its
devices, as the scratch trainer's do; there CPU devices share one memory and one thread, so a "transfer" is a copy.

Nothing is kept between two windows, so that a worker which replaces one that was lost can go on at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from reference.all_reduce import ALL_REDUCE, AllReduce
from suite.rank import arm
from suite.rank.timing import window

PERIOD = 4093  # of the inputs; prime, so that no chunk looks like the one beside it


class WrongSum(ArithmeticError):
    """An all_reduce left something else than the sum; how fast it did so is of no interest."""


def time_calls(rank: int, order: dict[str, Any], size_bytes: int, calls: int, *, check: bool) -> int:
    """Time `calls` all-reduces of one size, one after the other.

    One call beforehand is not timed. What is summed then is zeros: they stay what they are however often it is done.

    Args:
        rank: of this process.
        order: the controller's description: algorithm, processes, devices, backend, and the cores to pin to.
        size_bytes: of the float32 tensor that each device brings; a multiple of 4.
        calls: at least 1.
        check: hold the sums of numbers that differ by rank against the right ones first.

    Returns:
        Nanoseconds on this process's clock; as `suite.rank.timing.window`.

    Raises:
        WrongSum: the check found a wrong number.
        ValueError: the algorithm is unknown.
    """
    devices = arm.bind(rank, order)
    ranks = range(len(devices)) if order["processes"] == "one" else [rank]
    all_reduce_ = _named(order)
    if check:
        require_sums(all_reduce_, order["algorithm"], devices, ranks, len(order["devices"]), size_bytes)
    tensors = [torch.zeros(size_bytes // 4, device=device) for device in devices]
    all_reduce_(tensors)
    return window(partial(all_reduce_, tensors), calls, devices)


def require_sums(
    all_reduce_: AllReduce,
    name: str,
    devices: Sequence[torch.device],
    ranks: Sequence[int],
    world_size: int,
    size_bytes: int,
) -> None:
    """Refuse an all_reduce whose sums are not exact, on whole numbers that differ by rank and by place.

    Args:
        all_reduce_: as `reference.all_reduce.protocol` has it, for the devices of this process.
        name: of the algorithm.
        devices: of this process.
        ranks: theirs.
        world_size: k.
        size_bytes: of each device's float32 tensor.

    Raises:
        WrongSum: naming rank, place and both numbers.
    """
    count = size_bytes // 4
    tensors = [inputs(rank, count).to(device) for rank, device in zip(ranks, devices, strict=True)]
    all_reduce_(list(tensors))  # a list for the call: a sum that is only bound to its slots has reached nobody
    expected = torch.zeros(count)
    for rank in range(world_size):
        expected += inputs(rank, count)
    for rank, tensor in zip(ranks, tensors, strict=True):
        found = tensor.cpu()
        if not torch.equal(found, expected):
            place = int((found != expected).nonzero()[0])
            raise WrongSum(
                f"{name}, {size_bytes} bytes on {world_size} devices: rank {rank} holds {float(found[place])} at "
                f"place {place} and the sum is {float(expected[place])}; what is no all_reduce is not timed"
            )


def inputs(rank: int, count: int) -> Tensor:
    """What a rank brings to be summed: `count` whole numbers as float32, in another order on each rank.

    They go from 1 to 4093: the sum of two already needs more digits than float16 and bfloat16 have, and float32 holds
    that of 4,000 ranks exactly.
    """
    once = torch.arange(PERIOD) * (rank % (PERIOD - 1) + 1) % PERIOD + 1
    return once.float().repeat(-(-count // PERIOD))[:count]


def _named(order: dict[str, Any]) -> AllReduce:
    if order["processes"] == "per-device":
        return _distributed
    if order["algorithm"] not in ALL_REDUCE:
        raise ValueError(f"algorithm {order['algorithm']!r} is unknown; in one process there are {list(ALL_REDUCE)}")
    return ALL_REDUCE[order["algorithm"]]


def _distributed(tensors: Sequence[Tensor]) -> None:
    """torch.distributed's own, for the one tensor of this process."""
    [tensor] = tensors
    dist.all_reduce(tensor)
