"""Where a step's time went: from the times of diagnostic variants to bars that add up to the gap. Pure.

A step on k devices should take 1/k of one device's (strong scaling) or as long as that (weak). What it takes beyond is
explained by telescoping variants, each of which adds one thing to the one before, so that their differences sum to the
gap and nothing is left over. All but the first and the last train on one minibatch that stays in memory (`resident`),
unless a script has no loader that would give it again: the feed is then a part of every bar, and has none.

    one_resident / k  1/k of the whole batch on one device            (weak: all of one_resident)
    part              one device on a k-th of the batch               + small batch
    plain             k independent plain steps at once, typical rank + contention, as plain less plain_alone
                      the slowest rank                                + imbalance
    unsynced          the trainer on k devices, without its exchange  + overhead
    resident          its whole step                                  + exchange

A script's own ranks run in torch's fake group, in which nothing is exchanged, rank 0 alone or all at once:

    one_resident / k  1/k of the whole batch on one device            (weak: all of one_resident)
    alone             rank 0 on its batch                             + small batch (not weak) and overhead
    apart             the typical rank of k                           + contention
                      the slowest rank                                + imbalance
    resident          its whole step                                  + exchange

What the feed adds, from `one` less `one_resident` over k to `step` less `resident`, is a bar of its own.

A variant that could not be timed merges the causes on both its sides into one bar. Imbalance is taken from the
trainer's own ranks where these can run without waiting for one another, and from the plain steps otherwise. The typical
rank is the median one, of two the faster: a mean would book half of what a slow rank costs under another name.

A waterfall compares different variants, whose windows scatter differently, by the middle of each: their faster halves
would be apart by that alone. What grew compares the same variant of two builds, by the faster half of either, as a
verdict does (docs/adr/0007).

Not covered: what overlaps. An exchange hidden behind the backward costs nothing here, because only what makes a step
longer is seen; the exchange's bar is the exposed part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low
from typing import Literal, NamedTuple

from suite.verdict.metrics import Interval, faster_half, from_values, jackknife_variance, location, t_quantile
from suite.verdict.spread import Middle, of_parts

Point = Literal["one", "one_resident", "part", "plain_alone", "plain", "alone", "apart", "unsynced", "resident", "step"]
NEEDED: tuple[Point, ...] = ("one", "step")

MANY = 1000  # degrees of freedom; more change no quantile of t that could be seen
NAMING_ERROR = 0.05  # P(a part is named that costs nothing) of one waterfall, shared by all its parts

CAUSES = {
    "small batch": "a k-th of the batch takes longer than a k-th of the time",
    "contention": "devices at work at once slow one another down",
    "imbalance": "the slowest rank takes longer than the typical one",
    "overhead": "the trainer itself, without any exchange: serial dispatch, copies",
    "exchange": "the exposed part of the gradients' exchange",
    "feed": "waiting for data",
}

OWN_WORK = "one device's own work"  # not lost by scaling, but a base's may be shorter

# Of one session: for every window, the seconds a step of each rank.
Rounds = Mapping[Point, Sequence[Sequence[float]]]


def bar_name(causes: Sequence[str]) -> str:
    """Return the cause of a bar, or all causes that could not be told apart."""
    return " + ".join(causes) + (", not separable" if len(causes) > 1 else "")


@dataclass(frozen=True)
class Bar:
    """One part of the gap: seconds a step. Several causes are those that could not be told apart.

    `df` are the degrees of freedom of its interval.
    """

    causes: tuple[str, ...]
    step_s: Interval
    df: float

    @property
    def name(self) -> str:
        """The name of the bar, see `bar_name`."""
        return bar_name(self.causes)


@dataclass(frozen=True)
class Waterfall:
    """`ideal_s` plus all bars is `measured_s`, to rounding.

    Attributes:
        sessions: that had all variants.
        gap_s: between the two.
        slow_rank: which rank was the slowest in every session where ranks ran independently; None where none was.
    """

    sessions: int
    ideal_s: Interval
    measured_s: Interval
    gap_s: Interval
    bars: tuple[Bar, ...]
    slow_rank: int | None = None

    def bar(self, cause: str) -> Bar | None:
        """Return the bar whose only cause is this one; None where there is none."""
        return next((bar for bar in self.bars if bar.causes == (cause,)), None)

    @property
    def named(self) -> Bar | None:
        """The largest bar that its interval supports; None where it supports none."""
        named = supported([bar.step_s for bar in self.bars], [bar.df for bar in self.bars])
        return None if named is None else self.bars[named]


@dataclass(frozen=True)
class Growth:
    """By how much a candidate's step is longer than its base's: seconds a step, over sessions that timed both.

    Attributes:
        sessions: how many.
        whole_s: the step.
        parts: their sum is `whole_s`, to rounding; the first is one device's own work.
    """

    sessions: int
    whole_s: Interval
    parts: tuple[Bar, ...]

    @property
    def named(self) -> Bar | None:
        """The largest part that its interval supports and that the whole has room for; None where there is none."""
        return self.part(NAMING_ERROR)

    def part(self, error: float) -> Bar | None:
        """As `named`, where P(a part is returned that did not grow) is at most `error`."""
        steps_s, dfs = [part.step_s for part in self.parts], [part.df for part in self.parts]
        named = supported(steps_s, dfs, most_s=self.whole_s.high, error=error)
        return None if named is None else self.parts[named]


def supported(
    parts_s: Sequence[Interval], dfs: Sequence[float], *, most_s: float | None = None, error: float = NAMING_ERROR
) -> int | None:
    """Return the index of the part that may be named: the largest of those whose one-sided lower bound is above zero.

    The bounds share `error` evenly (Bonferroni; docs/diagnosis.md), because the largest is picked after looking
    at all of them. With two parts or more, none is above the end of the interval that is shown.

    Args:
        parts_s: seconds, with 95 % t-intervals over sessions.
        dfs: degrees of freedom of each interval.
        most_s: parts with a larger estimate are not plausible, and are not named.

    Returns:
        Its index; None where no part may be named, and always from one session.
    """
    supported_parts, alpha = [], error / max(2, len(parts_s))
    for index, (part, df) in enumerate(zip(parts_s, dfs, strict=True)):
        if part.low is not None and df >= 1 and (most_s is None or part.estimate <= most_s):
            wider = t_quantile(min(df, MANY), 1 - alpha) / t_quantile(min(df, MANY), 0.975)
            if part.estimate > (part.estimate - part.low) * wider:
                supported_parts.append(index)
    return max(supported_parts, key=lambda index: parts_s[index].estimate, default=None)


def outdone(parts_s: Sequence[Interval], named: int) -> bool:
    """Return whether another part may cost more than the named one's estimate, or has no interval."""
    most_s = parts_s[named].estimate
    return any(i != named and (part.high is None or part.high > most_s) for i, part in enumerate(parts_s))


class Times(NamedTuple):
    """Seconds a step of one variant in one session."""

    typical_s: float  # the median rank's, of an even number the lower
    slowest_s: float
    ranks: int  # that have times of their own


class _Windows(NamedTuple):
    """Seconds a step of one variant in the windows of one session."""

    typical_s: list[float]
    slowest_s: list[float]
    ranks: int

    @classmethod
    def of(cls, windows: Sequence[Sequence[float]]) -> _Windows:
        """Return them from the times of all ranks."""
        slowest = [max(times) for times in windows]
        one = max(map(len, windows)) == 1  # typical and slowest are the same list then
        return cls(slowest if one else [median_low(times) for times in windows], slowest, min(map(len, windows)))

    def without(self, number: int) -> _Windows:
        """Return them without those of one round."""
        slowest = [*self.slowest_s[:number], *self.slowest_s[number + 1 :]]
        if self.typical_s is self.slowest_s:
            return _Windows(slowest, slowest, self.ranks)
        return _Windows([*self.typical_s[:number], *self.typical_s[number + 1 :]], slowest, self.ranks)

    def times(self, of_windows: Callable[[Sequence[float]], float]) -> Times:
        """Return what is typical of them, and what the slowest rank takes."""
        slowest_s = of_windows(self.slowest_s)
        one = self.typical_s is self.slowest_s
        return Times(slowest_s if one else of_windows(self.typical_s), slowest_s, self.ranks)


_ByPoint = dict[Point, _Windows]


def waterfall(sessions: Sequence[Rounds], *, mode: str, world_size: int) -> Waterfall | None:
    """Return the waterfall of one cell.

    Args:
        sessions: those without all of `NEEDED` do not count, and of the others only the variants that all have.
        mode: the cell's, "strong" or "weak".
        world_size: k, at least 2.

    Returns:
        None where no session counts.
    """
    whole = [rounds for rounds in sessions if _is_whole(rounds)]
    if not whole:
        return None
    timed = _of_common_points(whole)
    of_rounds = list(map(_windows_of, timed))
    taken = [_taken(windows, location, mode, world_size) for windows in of_rounds]
    without = [[_taken(each, location, mode, world_size).bars for each in _without_one(w)] for w in of_rounds]
    return Waterfall(
        sessions=len(timed),
        ideal_s=from_values([session.ideal_s for session in taken]),
        measured_s=from_values([session.measured_s for session in taken]),
        gap_s=from_values([session.measured_s - session.ideal_s for session in taken]),
        bars=_estimated([session.bars for session in taken], without),
        slow_rank=_slow_rank(timed),
    )


def growth(candidate: Sequence[Rounds], base: Sequence[Rounds], *, mode: str, world_size: int) -> Growth | None:
    """Return the parts in which a candidate takes longer than its base, session by session.

    Args:
        candidate: of every session.
        base: of the same sessions, in the same order; one counts where both sides have all of `NEEDED`.
        mode: the cell's, "strong" or "weak".
        world_size: k, at least 2.

    Returns:
        None where no session counts.
    """
    both = [pair for pair in zip(candidate, base, strict=True) if all(map(_is_whole, pair))]
    if not both:
        return None
    timed = list(map(_windows_of, _of_common_points([rounds for pair in both for rounds in pair])))
    pairs = list(zip(timed[::2], timed[1::2], strict=True))

    def less(pair: Sequence[_ByPoint]) -> tuple[float, dict[tuple[str, ...], float]]:
        """Return by how much the step is longer, and each part."""
        new, old = (_taken(windows, faster_half, mode, world_size) for windows in pair)
        bars = {causes: new.bars[causes] - old.bars[causes] for causes in new.bars}
        return new.measured_s - old.measured_s, {(OWN_WORK,): new.ideal_s - old.ideal_s, **bars}

    longer = [less(pair) for pair in pairs]
    without = [[less(each)[1] for each in zip(*map(_without_one, pair), strict=False)] for pair in pairs]
    whole = from_values([whole_s for whole_s, _ in longer])
    return Growth(len(pairs), whole, _estimated([parts for _, parts in longer], without))


def _of_common_points(sessions: Sequence[Rounds]) -> list[Rounds]:
    """Return the rounds of the variants that all sessions have."""
    common = [point for point in sessions[0] if all(rounds.get(point) for rounds in sessions)]
    return [{point: rounds[point] for point in common} for rounds in sessions]


def _windows_of(rounds: Rounds) -> _ByPoint:
    """Return what is used of the ranks in every window."""
    return {point: _Windows.of(windows) for point, windows in rounds.items()}


def _without_one(windows: _ByPoint) -> list[_ByPoint]:
    """Return the windows of a session, each time without those of another round; nothing where there is only one."""
    count = min(len(each.typical_s) for each in windows.values())
    return [
        {point: each.without(number) for point, each in windows.items()} for number in range(count if count > 1 else 0)
    ]


def _estimated(
    sessions: Sequence[Mapping[tuple[str, ...], float]], without: Sequence[Sequence[Mapping[tuple[str, ...], float]]]
) -> tuple[Bar, ...]:
    """Return the parts with 95 % intervals over sessions; from few sessions, parts share how much these differ.

    Args:
        sessions: seconds a step of every part.
        without: the same without each of its rounds, for the noise within a session.
    """
    parts: list[list[Middle]] = []
    for causes in sessions[0]:
        noise = [jackknife_variance([each[causes] for each in rounds]) if rounds else () for rounds in without]
        parts.append([Middle(each[causes], *known) for each, known in zip(sessions, noise, strict=True)])
    shared, bars = of_parts(parts), []
    for number, (causes, part) in enumerate(zip(sessions[0], parts, strict=True)):
        interval, df = from_values([session.value for session in part]), len(part) - 1.0
        if shared is not None:
            df, half = shared[number].df, t_quantile(shared[number].df, 0.975) * shared[number].error
            interval = Interval(interval.estimate, interval.estimate - half, interval.estimate + half)
        bars.append(Bar(causes, interval, df))
    return tuple(bars)


class _Taken(NamedTuple):
    """One step of one session, taken apart: seconds."""

    ideal_s: float
    measured_s: float
    bars: dict[tuple[str, ...], float]


def _is_whole(rounds: Rounds) -> bool:
    return all(rounds.get(point) for point in NEEDED)


def _taken(windows: _ByPoint, of_windows: Callable[[Sequence[float]], float], mode: str, world_size: int) -> _Taken:
    times = {point: each.times(of_windows) for point, each in windows.items()}
    share = 1 / world_size if mode == "strong" else 1.0
    return _Taken(times["one"].slowest_s * share, times["step"].slowest_s, _chain(times, mode, share))


def _chain(times: Mapping[Point, Times], mode: str, share: float) -> dict[tuple[str, ...], float]:
    """Return the seconds a step of each bar, in one session."""
    fed = "resident" in times and "one_resident" in times
    one, whole = (times[point].slowest_s for point in (("one_resident", "resident") if fed else ("one", "step")))
    start = one * share
    levels = _of_apart(times, mode) if "apart" in times else _of_plain(times, mode, start)
    bars = _bars(start, [*levels, ("exchange", whole)])
    if fed:
        feed = times["step"].slowest_s - times["resident"].slowest_s
        bars["feed",] = feed - (times["one"].slowest_s - times["one_resident"].slowest_s) * share
    return bars


def _of_apart(times: Mapping[Point, Times], mode: str) -> list[tuple[str, float | None]]:
    """Return what a step takes with one cause after another, before the exchange, by a script's own ranks."""
    small: list[tuple[str, float | None]] = [("small batch", None)] if mode == "strong" else []
    return [
        *small,
        ("overhead", times["alone"].slowest_s if "alone" in times else None),
        ("contention", times["apart"].typical_s),
        ("imbalance", times["apart"].slowest_s),
    ]


def _of_plain(times: Mapping[Point, Times], mode: str, start: float) -> list[tuple[str, float | None]]:
    """Return what a step takes with one cause after another, by plain trainers and the trainer's own parts."""
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
    return levels


def _above(level: float | None, added: float | None) -> float | None:
    return None if level is None or added is None else level + added


def _bars(start: float, levels: Sequence[tuple[str, float | None]]) -> dict[tuple[str, ...], float]:
    """Return the differences of neighbouring levels; causes up to the next known level share a bar."""
    bars: dict[tuple[str, ...], float] = {}
    merged: tuple[str, ...] = ()
    for cause, level in levels:
        merged += (cause,)
        if level is not None:
            bars[merged] = level - start
            start, merged = level, ()
    return bars


def _slow_rank(sessions: Sequence[Rounds]) -> int | None:
    """Return the rank that was the slowest in every session, on average over its windows; None where none was."""
    points: list[Point] = [point for point in sessions[0] if point in ("unsynced", "plain", "apart")]
    slowest = set()
    for rounds in sessions:
        if windows := [ranks for point in points for ranks in rounds[point] if len(ranks) > 1]:
            means = [fmean(times) for times in zip(*windows, strict=False)]
            slowest |= {rank for rank, mean in enumerate(means) if mean == max(means)}
    return slowest.pop() if len(slowest) == 1 else None
