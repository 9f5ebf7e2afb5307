"""What one training step does, in counts, what changed against another step, and the peak memory of an arm. Pure.

A count has no noise: code that is the same does the same. A count that differs between steps of one process is kept as
"not reproducible" and never compared. docs/metrics.md defines all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Annotated, Literal, NamedTuple

from pydantic import Field
from rich.filesize import decimal

from suite.processes.jobs import Counted, PeakMemory
from suite.room.part import Part

RULE = "counters"  # of a cell's checks that compare them
EXCHANGES = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all", "send",
    "recv", "barrier", "device copy",
)  # fmt: skip
WAITS = "host-device synchronisation"
OTHERS = (
    "gradient bucket", WAITS, "compiled region", "recompilation", "peak memory", "kernel launch", "operator",
)  # fmt: skip
PLURALS = {"kernel launch": "kernel launches", "device copy": "device copies"}


class Count(Part):
    """One counter of a step."""

    what: str  # a name of `EXCHANGES` or `OTHERS`
    dtype: str = ""  # of the elements that an exchange carries; empty for other counters
    unit: Literal["calls", "bytes"] = "calls"
    # Over the counted steps, by rank; one value where all ranks have the same.
    least: Annotated[tuple[int, ...], Field(min_length=1)]
    most: Annotated[tuple[int, ...], Field(min_length=1)]


class Counters(Part):
    """What a step of one arm does."""

    made_with: str  # what may change counts without a change of code: torch's version, and that of the definitions
    steps: int  # how many were counted on each rank
    counts: tuple[Count, ...]  # in no order; what never happened has no entry, or one of 0

    def comparable(self, other: Counters) -> bool:
        """Return whether a difference means that the code differs."""
        return self.made_with == other.made_with

    def of(self, what: str) -> tuple[Count, ...]:
        """Return the entries of one counter."""
        return tuple(count for count in self.counts if count.what == what)


class Change(NamedTuple):
    """One difference between two steps, in words, and whether any rank does more of it now."""

    said: str
    rose: bool


def merged(ranks: Sequence[Counted]) -> Counters:
    """Return the counters of an arm from what its ranks counted, in rank order."""
    by_rank = [{(each.what, each.dtype, each.unit): (each.least, each.most) for each in rank.counts} for rank in ranks]
    counts = []
    for key in sorted({key for each in by_rank for key in each}):
        bounds = [each.get(key, (0, 0)) for each in by_rank]
        kept = bounds if len(set(bounds)) > 1 else bounds[:1]
        least, most = zip(*kept, strict=True)
        what, dtype, unit = key
        counts.append(Count(what=what, dtype=dtype, unit=unit, least=least, most=most))
    return Counters(made_with=ranks[0].made_with, steps=ranks[0].steps, counts=tuple(counts))


def changes(now: Counters, before: Counters) -> list[Change]:
    """Return what a step does differently from an earlier one, exchanges first; a counter that varies is left out.

    An exchange has changed where its calls, bytes or dtypes have. It rose where calls or bytes over all dtypes did.
    """
    made = []
    for what in (*EXCHANGES, *OTHERS):
        new, old = now.of(what), before.of(what)
        if not varying((*new, *old)):
            calls, n_bytes = (_total(old, "calls"), _total(new, "calls")), (_total(old, "bytes"), _total(new, "bytes"))
            dtypes = tuple(
                " and ".join(sorted({c.dtype for c in side if c.dtype and any(c.most)})) for side in (old, new)
            )
            if calls[0] != calls[1] or n_bytes[0] != n_bytes[1] or dtypes[0] != dtypes[1]:
                rose = any(a < b for figures in (calls, n_bytes) for a, b in _by_rank(*figures))
                made.append(Change(_said(what, calls, n_bytes, dtypes), rose))
    return made


def varying(counts: Iterable[Count]) -> bool:
    """Return whether any of these is not the same in every step."""
    return any(count.least != count.most for count in counts)


def not_reproducible(*sides: Counters) -> list[str]:
    """Return the counters that are not the same in every step of one of these arms, with their bounds."""
    varied = {what: next(filter(varying, (side.of(what) for side in sides)), ()) for what in (*EXCHANGES, *OTHERS)}
    return [f"{plural(what)} ({shown(counts)} a step)" for what, counts in varied.items() if counts]


def shown(counts: Sequence[Count]) -> str:
    """Return one counter as a table shows it: '1, float32, 0.5 MB'; bounds where it varies, '-' where there is none."""
    if not counts:
        return "-"
    parts = [_figure(counts, "calls", str)] if any(count.unit == "calls" for count in counts) else []
    dtypes = " and ".join(sorted({count.dtype for count in counts if count.dtype}))
    sizes = [_figure(counts, "bytes", decimal)] if any(count.unit == "bytes" for count in counts) else []
    return ", ".join([*parts, *filter(None, [dtypes]), *sizes])


def plural(what: str) -> str:
    """Return the name of a counter for several of it; names of collectives and of memory stay as they are."""
    return PLURALS.get(what, what if what in EXCHANGES or what == "peak memory" else f"{what}s")


def _figure(counts: Sequence[Count], unit: str, form: Callable[[int], str]) -> str:
    least, most = min(_total(counts, unit)), max(_total(counts, unit, most=True))
    return form(least) if least == most else f"{form(least)} to {form(most)}"


def _total(counts: Iterable[Count], unit: str, *, most: bool = False) -> tuple[int, ...]:
    """Return one counter over all dtypes, by rank; one value where all ranks have the same."""
    values = [count.most if most else count.least for count in counts if count.unit == unit]
    ranks = max(map(len, values), default=1)
    by_rank = tuple(sum(_of_rank(each, rank) for each in values) for rank in range(ranks))
    return by_rank if len(set(by_rank)) > 1 else by_rank[:1]


def _by_rank(before: Sequence[int], after: Sequence[int]) -> Iterable[tuple[int, int]]:
    return ((_of_rank(before, rank), _of_rank(after, rank)) for rank in range(max(len(before), len(after))))


def _of_rank(values: Sequence[int], rank: int) -> int:
    """Return the value of a rank; the last one where all ranks from there on have the same."""
    return values[min(rank, len(values) - 1)]


def _said(
    what: str, calls: tuple[Sequence[int], ...], n_bytes: tuple[Sequence[int], ...], dtypes: tuple[str, ...]
) -> str:
    old, new = map(_range, calls)
    text = plural(what) if what == "peak memory" else f"{old if old == new else f'{old} → {new}'} {plural(what)}"
    if dtypes[0] and dtypes[1] and dtypes[0] != dtypes[1]:
        text += f" of {dtypes[1]} instead of {dtypes[0]}"
    text += " a step"
    grown = [b - a for a, b in _by_rank(*n_bytes)]
    if any(grown):
        most = max(grown, key=abs)
        text += f", {'+' if most > 0 else '-'}{decimal(abs(most))}"
    return text + _as_when(what, calls, n_bytes)


def _as_when(what: str, calls: tuple[Sequence[int], ...], n_bytes: tuple[Sequence[int], ...]) -> str:
    """Return what usually makes such a difference; "" where nothing is usual."""
    if any(len(figures) > 1 for figures in (*calls, *n_bytes)):
        return ""
    ((old,), (new,)), ((old_bytes,), (new_bytes,)) = calls, n_bytes
    if what == WAITS and new > old:
        return ": as with .item(), or a value that decides what is done next"
    if what not in EXCHANGES or not old_bytes or not 0 < old < new:
        return ""
    if new_bytes == old_bytes:
        return ": the same in more pieces, as with smaller buckets"
    times = new // old
    if (new, new_bytes) == (times * old, times * old_bytes):
        return ": as when accumulation no longer skips its exchange"
    return ""


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high} by rank"


class RankMemory(Part):
    """The peak memory of one rank's process.

    Of tensors it is on each accelerator of the process, also with what torch's allocator keeps for later ones; empty on
    CPUs. `since_start` is whether `resident_bytes` is since the process began, because its kernel resets no peak.
    """

    allocated_bytes: tuple[int, ...] = ()
    reserved_bytes: tuple[int, ...] = ()
    resident_bytes: int | None = None  # of the process in the machine's memory; None on accelerators
    since_start: bool = False


def largest(before: Sequence[RankMemory], window: Iterable[PeakMemory | None]) -> tuple[RankMemory, ...]:
    """Return the peaks of earlier windows and of one more, by rank; a rank that does not tell has nothing new."""
    return tuple(_larger(*pair) for pair in zip_longest(before, window, fillvalue=None))


def memory_shown(ranks: Iterable[RankMemory]) -> str:
    """Return peak memory in words, with its range over ranks and accelerators; "" where nothing is known."""
    known = list(ranks)
    resident = [rank.resident_bytes for rank in known if rank.resident_bytes is not None]
    since = " (since the process began)" if any(rank.since_start for rank in known) else ""
    parts = (
        ([each for rank in known for each in rank.allocated_bytes], "in tensors"),
        ([each for rank in known for each in rank.reserved_bytes], "reserved"),
        (resident, f"resident{since}"),
    )
    return ", ".join(f"{_size_range(values)} {what}" for values, what in parts if values)


def most_reserved(ranks: Iterable[RankMemory]) -> int:
    """Return the most bytes that torch's allocator kept of any one accelerator; 0 on CPUs."""
    return max((each for rank in ranks for each in rank.reserved_bytes), default=0)


def _larger(*of_a_rank: RankMemory | PeakMemory | None) -> RankMemory:
    every = [each for each in of_a_rank if each is not None]
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


def _size_range(values: Sequence[int]) -> str:
    low, high = decimal(min(values)), decimal(max(values))
    return low if low == high else f"{low} to {high}"
