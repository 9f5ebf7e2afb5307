"""Compare two runs: what differs around them, each cell's time, and which part of a step grew. Pure.

The comparison judges nothing. Anything on the machine may have changed between two runs, so the interval of a ratio
comes from how runs differ: from accepted runs, from the calibration, or there is none. Times of different machines,
workloads or data are shown, and not divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from suite.plan import cells
from suite.plan.cells import Arm, Cell
from suite.records import baselines
from suite.records.baselines import Baseline
from suite.records.calibration import Calibration
from suite.records.differences import Difference, differences
from suite.records.record import (
    BarRecord,
    CellRecord,
    IntervalRecord,
    Record,
    WaterfallRecord,
    interval,
    oversubscribed_mark,
)
from suite.verdict import explain, metrics
from suite.verdict.diagnose import OWN_WORK, Bar, Growth
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
class StepPart:
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
    parts: tuple[StepPart, ...]

    @property
    def word(self) -> str:
        """What the ratio's interval shows; "" without one."""
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
        falls = [fall for cell in (self.first, self.second) for fall in cell.waterfalls]
        sessions, df = min(fall.sessions for fall in falls), min(min(fall.dfs, default=0.0) for fall in falls)
        names = [OWN_WORK, *(part.name for part in self.parts[1:])]
        bars = [Bar((name,), longer, df) for name, longer in zip(names, parts, strict=False)]
        return explain.grew(Growth(sessions, whole, tuple(bars)), "the first run")


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
        """The notes of all pairs, each once."""
        return tuple(dict.fromkeys(pair.note for pair in self.pairs if pair.note))


def compare(first: Record, second: Record, known: Known) -> Comparison:
    """Compare two runs, usually an older and a newer one."""
    before, after = _by_arm(first), _by_arm(second)
    names = cells.names(cell.trainer for cell in (*first.cells, *second.cells))
    pairs = [
        Pair(_name(names, old, new), old, new, *_ratio(old, new, first, second, known), _parts(old, new))
        for arm, old in before.items()
        if (new := after.get(arm)) is not None
    ]
    return Comparison(
        first=first,
        second=second,
        differences=tuple(_differences(first, second)),
        pairs=tuple(pairs),
        only_first=tuple(_name(names, cell) for arm, cell in before.items() if arm not in after),
        only_second=tuple(_name(names, cell) for arm, cell in after.items() if arm not in before),
    )


def _by_arm(record: Record) -> dict[Arm, CellRecord]:
    """Return a run's cells by what was timed: on one device strong and weak are one."""
    found: dict[Arm, CellRecord] = {}
    for cell in record.cells:
        found.setdefault(cells.arm("candidate", cell.trainer, Cell(*cell.place)), cell)
    return found


def _name(names: Mapping[str, str], *same: CellRecord) -> str:
    """Return the name of a cell, with the mark where it was oversubscribed in one run."""
    cell, mark = same[0], max(map(oversubscribed_mark, same))
    return f"{names[cell.trainer]} {cell.workload} {cell.mode} {cell.world_size}{mark}"


def _differences(first: Record, second: Record) -> list[Difference]:
    changed = differences(_machine(first), _machine(second), prefix="machine ")
    changed += differences(_code(first), _code(second))
    for name in ("tolerance", "against", "settings"):
        changed += differences({name: getattr(first, name)}, {name: getattr(second, name)})
    for prefix, field in (("definition of workload ", "workload_hashes"), ("dataset of ", "datasets")):
        changed += differences(getattr(first, field), getattr(second, field), common=True, prefix=prefix)
    return changed


def _machine(record: Record) -> dict[str, object]:
    cards = {f"GPU {card.index} ({card.id})": card.words for card in record.machine.cards}
    return {**record.machine.model_dump(exclude={"cards"}), **cards}


def _code(record: Record) -> dict[str, str]:
    code = record.environment
    changes = " with uncommitted changes" if code.dirty else ""
    return {"commit": code.commit + changes, **code.versions, **code.variables}


def _incomparable(first: CellRecord, second: CellRecord, a: Record, b: Record) -> str:
    """Return why two times must not be divided; "" where they may."""
    if a.machine.key != b.machine.key:
        return f"different machines ({a.machine.key}, {b.machine.key}): times are not compared"
    times = [cell.sec_per_epoch for cell in (first, second)]
    if not all(time is not None and time.estimate > 0 for time in times):
        return "not measured in both"
    workload = first.workload
    if a.workload_hashes.get(workload) != b.workload_hashes.get(workload) or workload not in a.workload_hashes:
        return f"workload {workload} is defined differently in the two runs: times are not compared"
    if a.datasets.get(workload) != b.datasets.get(workload):
        return f"workload {workload} was timed on different data: times are not compared"
    if a.estimate != b.estimate:
        return f"times of the {a.estimate} and of the {b.estimate} are not compared: measure one of the two runs again"
    if first.oversubscribed != second.oversubscribed:
        return "oversubscribed in one of the two runs alone: times are not compared"
    return ""


def _ratio(
    first: CellRecord, second: CellRecord, a: Record, b: Record, known: Known
) -> tuple[IntervalRecord | None, str]:
    """Return seconds of the second over the first, and where its interval is from, or why there is none."""
    if why := _incomparable(first, second, a, b):
        return None, why
    try:
        own, pin = baselines.measured(second, b), baselines.measured(first, a)
        accepted = [] if known.baseline is None else known.baseline.comparable(second, b)
        for spread, basis in ((None, ACCEPTED), (_run_spread(second, b, known.calibration), CALIBRATED)):
            distance = difference(own, accepted, spread, pin) if accepted else difference(own, [pin], spread)
            ratio = interval(distance.ratio)
            if ratio.low is not None:
                return ratio, basis
    except (ArithmeticError, ValueError):  # a record may hold any finite numbers
        return None, NONSENSE
    return ratio, OTHER_HOST if own.host != pin.host else UNKNOWN


def _run_spread(cell: CellRecord, record: Record, calibration: Calibration | None) -> RunSpread | None:
    """Return how runs of a cell differ by a calibration of this host."""
    if calibration is None or calibration.host != record.machine.host:
        return None
    workload_hash = record.workload_hashes[cell.workload]
    known = calibration.find(cell.trainer, workload_hash, cell.mode, cell.world_size)
    return None if known is None else known.spread.of_runs


def _parts(first: CellRecord, second: CellRecord) -> tuple[StepPart, ...]:
    """Return the parts of the candidate's steps in both runs."""
    before, after = first.own_waterfall, second.own_waterfall
    if before is None or after is None:
        return ()
    ideal = StepPart("ideal", before.ideal_s, after.ideal_s)
    measured = StepPart("measured", before.measured_s, after.measured_s)
    try:
        return (ideal, *_bars(before, after), measured)
    except (ArithmeticError, ValueError):  # as in `_ratio`
        return ()


def _bars(first: WaterfallRecord, second: WaterfallRecord) -> Iterable[StepPart]:
    """Yield bars of the same causes; where one run could not tell causes apart, the other's bars are added up."""
    for causes in _groups([bar.causes for bar in (*first.bars, *second.bars)]):
        sums = [_sum([bar for bar in side.bars if causes.issuperset(bar.causes)]) for side in (first, second)]
        names = [cause for side in (first, second) for bar in side.bars for cause in bar.causes if cause in causes]
        yield StepPart(" + ".join(dict.fromkeys(names)), *sums)


def _groups(bars: Iterable[Sequence[str]]) -> list[set[str]]:
    """Return the sets of causes that share a bar in either run, also by way of a third cause."""
    groups: list[set[str]] = []
    for causes in bars:
        touched = [group for group in groups if group.intersection(causes)]
        merged = set(causes).union(*touched)
        at = groups.index(touched[0]) if touched else len(groups)
        groups = [group for group in groups if group not in touched]
        groups.insert(at, merged)
    return groups


def _sum(bars: Sequence[BarRecord]) -> IntervalRecord:
    """Return one bar as it is, and the sum of several without an interval: how they correlate is not known."""
    if len(bars) == 1:
        return bars[0].step_s
    return IntervalRecord(estimate=math.fsum(bar.step_s.estimate for bar in bars))
