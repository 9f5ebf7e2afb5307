"""Where a step's time went: from the times of diagnostic variants to bars that add up to the gap. Pure.

A step on k devices should take 1/k of one device's (strong scaling) or as long as that (weak). What it takes beyond is
explained by telescoping variants, each of which adds one thing to the one before, so that their differences sum to the
gap and nothing is left over. All but the first and the last train on one minibatch that stays in memory (`resident`):

    one_resident / k  1/k of the whole batch on one device            (weak: all of one_resident)
    part              one device on a k-th of the batch               + small batch
    plain             k independent plain steps at once, typical rank + contention, as plain less plain_alone
                      the slowest rank                                + imbalance
    unsynced          the trainer on k devices, without its exchange  + overhead
    resident          its whole step                                  + exchange

What the feed adds, from `one` less `one_resident` over k to `step` less `resident`, stands apart.

A variant that could not be timed merges the causes on both its sides into one bar. Imbalance is taken from the
trainer's own ranks where these can run without waiting for one another, and from the plain steps otherwise. The typical
rank is the median one, of two the faster: a mean would book half of what a slow rank costs under another name.

Not covered: what overlaps. An exchange hidden behind the backward costs nothing here, because only what makes a step
longer is seen; the exchange's bar is the exposed part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low
from typing import Literal, NamedTuple

from suite.metrics import Interval, from_values, location

Point = Literal["one", "one_resident", "part", "plain_alone", "plain", "unsynced", "resident", "step"]
NEEDED: tuple[Point, ...] = ("one", "one_resident", "resident", "step")

CAUSES = {
    "small batch": "a k-th of the batch takes longer than a k-th of the time",
    "contention": "devices at work at once slow one another down",
    "imbalance": "the slowest rank takes longer than the typical one",
    "overhead": "the trainer itself, without any exchange: serial dispatch, copies",
    "exchange": "the exposed part of the gradients' exchange",
    "feed": "waiting for data",
}

# Of one session: for every window, the seconds a step of each rank.
Rounds = Mapping[Point, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Bar:
    """One part of the gap: seconds a step. Several causes are those that could not be told apart."""

    causes: tuple[str, ...]
    step_s: Interval

    @property
    def name(self) -> str:
        """As it is shown."""
        return self.causes[0] if len(self.causes) == 1 else f"{' + '.join(self.causes)}, not separable"


@dataclass(frozen=True)
class Waterfall:
    """`ideal_s` plus all bars is `measured_s`, to rounding.

    Attributes:
        sessions: that had all variants.
        gap_s: between the two.
        slow_rank: which rank was slowest on average where ranks ran independently; None where there was only one.
    """

    sessions: int
    ideal_s: Interval
    measured_s: Interval
    gap_s: Interval
    bars: tuple[Bar, ...]
    slow_rank: int | None = None

    def bar(self, cause: str) -> Bar | None:
        """The bar of one cause alone."""
        return next((bar for bar in self.bars if bar.causes == (cause,)), None)

    @property
    def largest(self) -> Bar:
        """The bar that explains most."""
        return max(self.bars, key=lambda bar: bar.step_s.estimate)


class Times(NamedTuple):
    """Seconds a step of one variant in one session."""

    typical_s: float  # the median rank's, of an even number the lower
    slowest_s: float
    ranks: int  # that have times of their own


def waterfall(sessions: Sequence[Rounds], *, mode: str, world_size: int) -> Waterfall | None:
    """The waterfall of one cell.

    Args:
        sessions: those without all of `NEEDED` do not count, and of the others only the variants that all have.
        mode: the cell's, "strong" or "weak".
        world_size: k, at least 2.

    Returns:
        None where no session counts.
    """
    whole = [rounds for rounds in sessions if all(rounds.get(point) for point in NEEDED)]
    if not whole:
        return None
    common = [point for point in whole[0] if all(rounds.get(point) for rounds in whole)]
    times = [{point: _times(rounds[point]) for point in common} for rounds in whole]
    share = 1 / world_size if mode == "strong" else 1.0
    chains = [_chain(found, mode, share) for found in times]
    ideal = [found["one"].slowest_s * share for found in times]
    measured = [found["step"].slowest_s for found in times]
    bars = tuple(Bar(causes, from_values([chain[causes] for chain in chains])) for causes in chains[0])
    return Waterfall(
        sessions=len(whole),
        ideal_s=from_values(ideal),
        measured_s=from_values(measured),
        gap_s=from_values([end - start for start, end in zip(ideal, measured, strict=True)]),
        bars=bars,
        slow_rank=_slow_rank(whole, common),
    )


def _times(windows: Sequence[Sequence[float]]) -> Times:
    typical, slowest = [median_low(ranks) for ranks in windows], [max(ranks) for ranks in windows]
    return Times(location(typical), location(slowest), min(map(len, windows)))


def _chain(times: Mapping[Point, Times], mode: str, share: float) -> dict[tuple[str, ...], float]:
    """Seconds a step of each bar, in one session."""
    start = times["one_resident"].slowest_s * share
    levels: list[tuple[str, float | None]] = []
    level: float | None = start
    if mode == "strong":
        level = times["part"].slowest_s if "part" in times else None
        levels.append(("small batch", level))
    contention = None
    if "plain" in times and "plain_alone" in times:
        contention = times["plain"].typical_s - times["plain_alone"].typical_s
    level = _above(level, contention)
    levels.append(("contention", level))
    apart = times.get("unsynced")
    if apart is None or apart.ranks == 1:  # one process drives all devices, and only the plain steps tell them apart
        apart = times.get("plain")
    level = _above(level, None if apart is None else apart.slowest_s - apart.typical_s)
    levels.append(("imbalance", level))
    levels.append(("overhead", times["unsynced"].slowest_s if "unsynced" in times else None))
    levels.append(("exchange", times["resident"].slowest_s))
    feed = times["step"].slowest_s - times["resident"].slowest_s
    feed -= (times["one"].slowest_s - times["one_resident"].slowest_s) * share
    return {**_bars(start, levels), ("feed",): feed}


def _above(level: float | None, added: float | None) -> float | None:
    return None if level is None or added is None else level + added


def _bars(start: float, levels: Sequence[tuple[str, float | None]]) -> dict[tuple[str, ...], float]:
    """Differences of neighbouring levels; causes up to the next known one share a bar."""
    bars: dict[tuple[str, ...], float] = {}
    merged: tuple[str, ...] = ()
    for cause, level in levels:
        merged += (cause,)
        if level is not None:
            bars[merged] = level - start
            start, merged = level, ()
    return bars


def _slow_rank(sessions: Sequence[Rounds], common: Sequence[Point]) -> int | None:
    windows = [
        ranks
        for point in ("unsynced", "plain")
        if point in common
        for rounds in sessions
        for ranks in rounds[point]
        if len(ranks) > 1
    ]
    if not windows:
        return None
    means = [fmean(window[rank] for window in windows) for rank in range(min(map(len, windows)))]
    return max(range(len(means)), key=means.__getitem__)
