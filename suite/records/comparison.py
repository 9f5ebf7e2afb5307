"""Two runs side by side: what differs around them, what each cell took, and which part of a step grew. Pure.

It informs and judges nothing. Two runs of different times face everything that changed on the machine between them, so
the interval of a ratio comes from how runs differ: from accepted runs, from the calibration, or there is none. Times of
different machines, workloads or data are shown, and not divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from suite.plan.cells import short
from suite.records import baselines
from suite.records.baselines import Baseline
from suite.records.calibration import Calibration
from suite.records.record import BarRecord, CellRecord, IntervalRecord, Record, WaterfallRecord, interval
from suite.verdict import metrics
from suite.verdict.diagnose import supported
from suite.verdict.stored import MIN_BASELINE_RUNS, RunSpread, difference

ACCEPTED = "intervals of ratios: from how accepted runs differ"
CALIBRATED = (
    "intervals of ratios: from how sessions of one hour differ (calibration); runs of other hours differ by more"
)
UNKNOWN = (
    f"no interval, because too little is known of how runs differ here: accept {MIN_BASELINE_RUNS} runs of several "
    "sessions, or measure both in one run (--scaling-against)"
)
OTHER_HOST = "no interval: another host, which may be faster or slower by itself"
NONSENSE = "times or intervals that no machine can have measured"


@dataclass(frozen=True)
class Known:
    """What is known of how runs differ on the machine of the second run."""

    baseline: Baseline | None = None
    calibration: Calibration | None = None


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same in both runs."""

    what: str
    first: str
    second: str


@dataclass(frozen=True)
class Part:
    """A part of a step in both runs, seconds; `grew_s` is by how much it is longer in the second."""

    name: str
    first: IntervalRecord
    second: IntervalRecord

    @property
    def grew_s(self) -> float:
        """Second less first."""
        return self.second.estimate - self.first.estimate


@dataclass(frozen=True)
class Pair:
    """A cell in both runs.

    Attributes:
        ratio: seconds of the second over the first; None where they must not be divided.
        note: why there is no ratio, or no interval, or where it is from.
        parts: of its step, ideal time first and measured time last; empty where not both have a waterfall.
    """

    name: str
    first: CellRecord
    second: CellRecord
    ratio: IntervalRecord | None
    note: str
    parts: tuple[Part, ...]

    @property
    def word(self) -> str:
        """What the ratio's interval says; "" without one."""
        if self.ratio is None or self.ratio.low is None or self.ratio.high is None:
            return ""
        if self.ratio.low <= 1 <= self.ratio.high:
            return "not told apart"
        return "slower" if self.ratio.low > 1 else "faster"

    @property
    def grew(self) -> str:
        """Which part of the step takes longer, as far as its interval supports one; "" without parts or a ratio."""
        if not self.parts or self.ratio is None:
            return ""
        *parts, whole = (metrics.difference(part.second, part.first) for part in self.parts)
        sessions = [found.sessions for cell in (self.first, self.second) for found in cell.waterfalls]
        named = supported(parts, min(sessions), most_s=whole.high)
        if named is not None:
            return (
                f"{self.parts[named].name} takes {_milliseconds(parts[named].estimate)} a step longer; the whole step "
                f"{_milliseconds(whole.estimate)}."
            )
        if whole.high is not None and whole.high <= 0:
            return "The step does not take longer than in the first run."
        return "Which part takes longer is not known: no part's interval is above zero and within the whole step's."


@dataclass(frozen=True)
class Comparison:
    """Two runs.

    Attributes:
        differences: of machine, environment, settings and workloads.
        pairs: cells that both have, in the first run's order.
        only_first, only_second: names of the others.
    """

    first: Record
    second: Record
    differences: tuple[Difference, ...]
    pairs: tuple[Pair, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of ratios, each once."""
        return tuple(dict.fromkeys(pair.note for pair in self.pairs if pair.note))


def compare(first: Record, second: Record, known: Known) -> Comparison:
    """Lay the second run beside the first.

    Args:
        first: usually the older one.
        second: usually the newer one.
        known: of the second run's machine.
    """
    before, after = ({_place(cell): cell for cell in record.cells} for record in (first, second))
    pairs = [_pair(cell, after[place], first, second, known) for place, cell in before.items() if place in after]
    return Comparison(
        first=first,
        second=second,
        differences=tuple(_differences(first, second)),
        pairs=tuple(pairs),
        only_first=tuple(_name(cell) for place, cell in before.items() if place not in after),
        only_second=tuple(_name(cell) for place, cell in after.items() if place not in before),
    )


def _place(cell: CellRecord) -> tuple[str, str, str, int]:
    """Where a cell stands in the matrix, whatever its workload's name stands for by now."""
    return cell.trainer, cell.workload, cell.mode, cell.world_size


def _name(cell: CellRecord) -> str:
    mark = " (oversubscribed)" if cell.oversubscribed else ""
    return f"{short(cell.trainer)} {cell.workload} {cell.mode} {cell.world_size}{mark}"


def _differences(first: Record, second: Record) -> Iterable[Difference]:
    yield from _changed("machine ", first.machine.model_dump(), second.machine.model_dump())
    yield from _changed("", _environment(first), _environment(second))
    yield from _changed("", first.environment.versions, second.environment.versions)
    for what in ("tolerance", "against", "settings"):
        yield from _changed("", {what: getattr(first, what)}, {what: getattr(second, what)})
    yield from _changed("definition of workload ", first.workload_hashes, second.workload_hashes, both=True)
    yield from _changed("dataset of ", first.datasets, second.datasets, both=True)


def _environment(record: Record) -> dict[str, str]:
    changes = " with uncommitted changes" if record.environment.dirty else ""
    return {"commit": record.environment.commit + changes}


def _changed(
    prefix: str, first: Mapping[str, object], second: Mapping[str, object], *, both: bool = False
) -> Iterable[Difference]:
    """What has another value; with `both`, only of what both have."""
    for what in dict.fromkeys((*first, *second)):
        if first.get(what) != second.get(what) and not (both and (what not in first or what not in second)):
            yield Difference(prefix + what, _words(first.get(what)), _words(second.get(what)))


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return " | ".join(map(str, value)) or "-"
    return "-" if value is None or value == "" else str(value)


def _pair(first: CellRecord, second: CellRecord, a: Record, b: Record, known: Known) -> Pair:
    why = _incomparable(first, second, a, b)
    ratio, note = (None, why) if why else _ratio(first, second, a, b, known)
    return Pair(_name(first), first, second, ratio, note, _parts(first, second))


def _incomparable(first: CellRecord, second: CellRecord, a: Record, b: Record) -> str:
    """Why two times must not be divided; "" where they may."""
    if a.machine.key != b.machine.key:
        return f"different machines ({a.machine.key}, {b.machine.key}): times are not compared"
    workload = first.workload
    if a.workload_hashes.get(workload) != b.workload_hashes.get(workload) or workload not in a.workload_hashes:
        return f"workload {workload} is another one in the two runs: times are not compared"
    if a.datasets.get(workload) != b.datasets.get(workload):
        return f"workload {workload} was timed on different data: times are not compared"
    times = [cell.sec_per_epoch for cell in (first, second)]
    if not all(time is not None and time.estimate > 0 for time in times):
        return "not measured in both"
    return ""


def _ratio(
    first: CellRecord, second: CellRecord, a: Record, b: Record, known: Known
) -> tuple[IntervalRecord | None, str]:
    """Seconds of the second over the first, and where its interval is from, or why there is none."""
    try:
        own, pin = baselines.measured(second, b), baselines.measured(first, a)
        accepted = [] if known.baseline is None else known.baseline.comparable(second, b)
        for spread, basis in ((None, ACCEPTED), (_spread(second, b, known.calibration), CALIBRATED)):
            ratio = difference(own, accepted, spread, pin).ratio if accepted else difference(own, [pin], spread).ratio
            found = interval(ratio)
            if found.low is not None:
                return found, basis
    except (ArithmeticError, ValueError):  # a record may hold any finite numbers
        return None, NONSENSE
    return found, OTHER_HOST if own.host != pin.host else UNKNOWN


def _spread(cell: CellRecord, record: Record, calibration: Calibration | None) -> RunSpread | None:
    """How runs of a cell differ, as far as a calibration's sessions show it; that of another host shows nothing."""
    if calibration is None or calibration.host != record.machine.host:
        return None
    workload_hash = record.workload_hashes[cell.workload]
    found = calibration.spread(cell.trainer, workload_hash, cell.mode, cell.world_size)
    if found is None or not found.spread.unpaired_sd:
        return None
    return RunSpread(found.spread.unpaired_sd, found.spread.sessions - 1)


def _parts(first: CellRecord, second: CellRecord) -> tuple[Part, ...]:
    """The candidate's waterfalls of both runs, part by part."""
    sides = [next((w for w in cell.waterfalls if w.side == "candidate"), None) for cell in (first, second)]
    if sides[0] is None or sides[1] is None:
        return ()
    ideal = Part("ideal", sides[0].ideal_s, sides[1].ideal_s)
    measured = Part("measured", sides[0].measured_s, sides[1].measured_s)
    try:
        return (ideal, *_bars(sides[0], sides[1]), measured)
    except (ArithmeticError, ValueError):  # as in `_ratio`
        return ()


def _bars(first: WaterfallRecord, second: WaterfallRecord) -> Iterable[Part]:
    """Bars of the same causes; where one run could not tell two causes apart, the other's bars are added up."""
    for causes in _groups([bar.causes for bar in (*first.bars, *second.bars)]):
        sums = [_sum([bar for bar in side.bars if causes.issuperset(bar.causes)]) for side in (first, second)]
        order = [cause for side in (first, second) for bar in side.bars for cause in bar.causes if cause in causes]
        yield Part(" + ".join(dict.fromkeys(order)), *sums)


def _groups(bars: Iterable[Sequence[str]]) -> list[set[str]]:
    """Causes that share a bar in either run, and those that share one with these."""
    groups: list[set[str]] = []
    for causes in bars:
        touched = [group for group in groups if group.intersection(causes)]
        merged = set(causes).union(*touched)
        at = groups.index(touched[0]) if touched else len(groups)
        groups = [group for group in groups if group not in touched]
        groups.insert(at, merged)
    return groups


def _sum(bars: Sequence[BarRecord]) -> IntervalRecord:
    """One bar as it is; of several the sum alone, because what they have in common is not known."""
    if len(bars) == 1:
        return bars[0].step_s
    return IntervalRecord(estimate=math.fsum(bar.step_s.estimate for bar in bars))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
