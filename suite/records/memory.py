"""The peak memory of an arm: the most that its processes held during any timed window. docs/metrics.md defines it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.filesize import decimal

from suite.processes.answers import PeakMemory
from suite.room.part import Part


class RankMemory(Part):
    """The peak memory of one rank's process.

    Attributes:
        allocated_bytes, reserved_bytes: of tensors, and with what torch's allocator keeps for later ones, on each
            accelerator of the process; empty on CPUs.
        resident_bytes: of the process in the machine's memory; None on accelerators.
        since_start: whether `resident_bytes` is the peak since the process began, because its kernel resets none.
    """

    allocated_bytes: tuple[int, ...] = ()
    reserved_bytes: tuple[int, ...] = ()
    resident_bytes: int | None = None
    since_start: bool = False


def largest(before: Sequence[RankMemory], window: Iterable[PeakMemory | None]) -> tuple[RankMemory, ...]:
    """Return the peaks of earlier windows and of one more, by rank; a rank that does not tell has nothing new."""
    return tuple(_larger(*pair) for pair in zip_longest(before, window, fillvalue=None))


def shown(ranks: Iterable[RankMemory]) -> str:
    """Return peak memory in words, with its range over ranks and accelerators; "" where nothing is known."""
    known = list(ranks)
    resident = [rank.resident_bytes for rank in known if rank.resident_bytes is not None]
    since = " (since the process began)" if any(rank.since_start for rank in known) else ""
    parts = (
        ([each for rank in known for each in rank.allocated_bytes], "in tensors"),
        ([each for rank in known for each in rank.reserved_bytes], "reserved"),
        (resident, f"resident{since}"),
    )
    return ", ".join(f"{_range(values)} {what}" for values, what in parts if values)


def most_reserved(ranks: Iterable[RankMemory]) -> int:
    """Return the most bytes that torch's allocator kept of any one accelerator; 0 on CPUs."""
    return max((each for rank in ranks for each in rank.reserved_bytes), default=0)


def _larger(before: RankMemory | None, window: PeakMemory | None) -> RankMemory:
    every = [each for each in (before, window) if each is not None]
    resident = [each.resident_bytes for each in every if each.resident_bytes is not None]
    return RankMemory(
        allocated_bytes=_each([each.allocated_bytes for each in every]),
        reserved_bytes=_each([each.reserved_bytes for each in every]),
        resident_bytes=max(resident, default=None),
        since_start=any(each.since_start for each in every),
    )


def _each(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the largest value at every place."""
    return tuple(map(max, zip_longest(*rows, fillvalue=0)))


def _range(values: Sequence[int]) -> str:
    low, high = decimal(min(values)), decimal(max(values))
    return low if low == high else f"{low} to {high}"
