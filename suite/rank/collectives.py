"""Collectives as a worker times them: one message size, one algorithm, one window (worker's side).

There are two kinds of algorithms. A backend's own (`gloo`, `nccl`) goes through `torch.distributed` with a process for
each device, as the exchange of DistributedDataParallel and FSDP does. Those of `reference.all_reduce` run in one
process over all its devices, as the scratch trainer's do; CPU devices then share one memory and one thread, so a
"transfer" is a copy.

No state is kept between two windows, so a new worker can replace one that was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist

from reference.all_reduce import ALL_REDUCE, AllReduce
from suite.processes.jobs import Exchange
from suite.rank import arm
from suite.rank.timing import window

PERIOD = 4093  # of the inputs; prime, so that neighbouring chunks differ


class WrongSum(ArithmeticError):
    """A collective computed something other than it should, so it is not timed."""


def time_calls(rank: int, exchange: Exchange, size_bytes: int, calls: int, *, check: bool, lead_in: int = 0) -> int:
    """Time `calls` collectives of one size, one after the other.

    One call before them is not timed. The tensors are zeros, which any number of sums leaves unchanged.

    Args:
        rank: of this process.
        exchange: what to time.
        size_bytes: of the float32 tensor that each device brings to an all_reduce or a reduce_scatter, or has after an
            all_gather; a multiple of 4. Where the ranks' pieces must be equal, what is left over is dropped.
        calls: at least 1.
        check: whether to check the result first, of numbers that differ by rank.
        lead_in: so many calls more that are not timed, as `suite.rank.timing.window` has it.

    Returns:
        Nanoseconds on this process's clock, as `suite.rank.timing.window` returns them.

    Raises:
        WrongSum: the check found a wrong number.
        ValueError: the algorithm is unknown.
    """
    devices = arm.bind(rank, exchange)
    if exchange.collective in PIECEWISE:
        call = _of_pieces(rank, exchange, devices[0], size_bytes, check=check)
    else:
        all_reduce_ = _named(exchange)
        if check:
            ranks = range(len(devices)) if exchange.processes == "one" else [rank]
            require_sums(all_reduce_, exchange.algorithm, devices, ranks, len(exchange.devices), size_bytes)
        call = partial(all_reduce_, [torch.zeros(size_bytes // 4, device=device) for device in devices])
    call()
    duration_ns, _ = window(call, calls, devices, lead_in=lead_in)
    return duration_ns


def require_sums(
    all_reduce_: AllReduce,
    name: str,
    devices: Sequence[torch.device],
    ranks: Sequence[int],
    world_size: int,
    size_bytes: int,
) -> None:
    """Check that an all_reduce is exact on whole numbers that differ by rank and by place; as `require_equal`.

    The devices and ranks are those of this process, and the size is that of each device's float32 tensor.
    """
    count = size_bytes // 4
    tensors = [inputs(rank, count, device) for rank, device in zip(ranks, devices, strict=True)]
    all_reduce_(list(tensors))  # a temporary list: a sum that is only put into its slots is lost
    for rank, tensor in zip(ranks, tensors, strict=True):
        about = f"{name}, {size_bytes} bytes on {world_size} devices: rank {rank}"
        require_equal(about, tensor, sums(world_size, count, tensor.device))


def require_equal(about: str, actual: Tensor, expected: Tensor) -> None:
    """Raise `WrongSum` with the first place where two tensors (n,) differ."""
    if not torch.equal(actual, expected):
        place = int((actual != expected).nonzero()[0])
        raise WrongSum(
            f"{about} has {float(actual[place])} at place {place} and should have {float(expected[place])}: "
            "wrong result, not timed"
        )


def sums(world_size: int, count: int, device: torch.device) -> Tensor:
    """Return the sum (count,) of the `inputs` of all ranks, which repeats itself as they do."""
    once = torch.stack([inputs(rank, PERIOD) for rank in range(world_size)]).sum(dim=0)
    return once.to(device).repeat(-(-count // PERIOD))[:count]


def inputs(rank: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return `count` whole numbers as float32, in a different sequence on each rank.

    They are from 1 to 4093. The sum of two needs more digits than float16 and bfloat16 have; float32 represents the sum
    of 4,000 ranks exactly.
    """
    once = torch.arange(PERIOD) * (rank % (PERIOD - 1) + 1) % PERIOD + 1
    return once.float().to(device).repeat(-(-count // PERIOD))[:count]


PIECEWISE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "reduce_scatter": lambda whole, piece: dist.reduce_scatter_tensor(piece, whole),
    "all_gather": dist.all_gather_into_tensor,
}
"""torch.distributed's, called with a tensor (k n,) and a rank's piece (n,) of it."""


def require_pieces(
    call: Callable[[Tensor, Tensor], object], collective: str, rank: int, world_size: int, whole: Tensor, piece: Tensor
) -> None:
    """Check that a collective of `PIECEWISE` is exact on such numbers; as `require_equal`."""
    count, device = len(piece), whole.device
    about = f"{collective}, {4 * len(whole)} bytes on {world_size} devices: rank {rank}"
    if collective == "all_gather":
        call(whole, inputs(rank, count, device))
        require_equal(about, whole, torch.cat([inputs(each, count, device) for each in range(world_size)]))
    else:
        call(inputs(rank, len(whole), device), piece)
        require_equal(about, piece, sums(world_size, len(whole), device)[rank * count :][:count])


def _of_pieces(
    rank: int, exchange: Exchange, device: torch.device, size_bytes: int, *, check: bool
) -> Callable[[], object]:
    """Return a call of a collective of `PIECEWISE` on zeros; `check` it first."""
    call, world_size = PIECEWISE[exchange.collective], len(exchange.devices)
    count = size_bytes // 4 // world_size
    whole, piece = torch.zeros(count * world_size, device=device), torch.zeros(count, device=device)
    if check:
        require_pieces(call, exchange.collective, rank, world_size, whole, piece)
    return partial(call, whole.zero_(), piece.zero_())


def _named(exchange: Exchange) -> AllReduce:
    if exchange.processes == "per-device":
        return _distributed
    if exchange.algorithm not in ALL_REDUCE:
        raise ValueError(f"unknown algorithm {exchange.algorithm!r}: in one process choose one of {list(ALL_REDUCE)}")
    return ALL_REDUCE[exchange.algorithm]


def _distributed(tensors: Sequence[Tensor]) -> None:
    """Call torch.distributed's all_reduce on the one tensor of this process."""
    [tensor] = tensors
    dist.all_reduce(tensor)
