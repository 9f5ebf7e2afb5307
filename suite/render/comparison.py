"""Two runs side by side, as a document: what differs around them, and every cell that both have. It judges nothing.

Anything on a machine may have changed between two runs, and the sessions of one do not show by how much, so a ratio of
times has no interval. Times of different machines, workloads or data are not divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from suite.plan import cells as planned
from suite.plan.cells import Arm, Cell
from suite.records.record import CellRecord, Difference, Record, differences, oversubscribed_mark
from suite.render import figures
from suite.render.document import Charts, Document, Drawn, First, Intervals, Lines, Row, Rules, Section, Span, Table
from suite.render.sections.cells import DRAWN
from suite.render.sections.lost_time import stack
from suite.render.sections.scaling import speedups
from suite.verdict.metrics import Interval

TITLE = "Two runs side by side"
COLUMNS = ("cell", "sec/epoch, first → second", "second / first", DRAWN, "efficiency", "accuracy")
MAX_NAMES = 12  # of cells that one run alone has
MAX_NOTES = 20
NO_VERDICT = (
    "Each interval is over the sessions of its own run. Runs of different hours differ by more, so a ratio has no "
    "interval and is no verdict: to get one, measure both in one run (--scaling-against)."
)


class Pair(NamedTuple):
    """A cell in both runs; `ratio` is seconds of the second over the first, or None, and `note` says why."""

    name: str
    first: CellRecord
    second: CellRecord
    ratio: Interval | None
    note: str

    @property
    def row(self) -> tuple[str | Drawn, ...]:
        """Its line of the table, in the order of `COLUMNS`."""
        cells = (self.first, self.second)
        times = (figures.interval(cell.sec_per_epoch, ".3g") for cell in cells)
        efficiencies = (figures.interval(cell.efficiency, ".2f") for cell in cells)
        shown = (times, efficiencies, map(figures.accuracy, cells))
        both = [" → ".join(texts).replace("- → -", "-") for texts in shown]
        return (self.name, both[0], figures.interval(self.ratio, ".3f"), Drawn((Span.dot(self.ratio),)), *both[1:])


class Comparison(NamedTuple):
    """The cells that both runs have, in the first one's order, and the names of those that one run alone has."""

    pairs: list[Pair]
    only_first: list[str]
    only_second: list[str]


def compare(first: Record, second: Record) -> Comparison:
    """Compare two runs, usually an older and a newer one."""
    before, after = _by_arm(first), _by_arm(second)
    names = planned.names(cell.trainer for cell in (*first.cells, *second.cells))

    def name(*same: CellRecord) -> str:
        cell, mark = same[0], max(map(oversubscribed_mark, same))
        return f"{names[cell.trainer]} {cell.workload} {cell.mode} {cell.world_size}{mark}"

    common = [(old, after[arm]) for arm, old in before.items() if arm in after]
    return Comparison(
        [Pair(name(old, new), old, new, *_ratio(first, second, old, new)) for old, new in common],
        [name(cell) for arm, cell in before.items() if arm not in after],
        [name(cell) for arm, cell in after.items() if arm not in before],
    )


def _by_arm(record: Record) -> dict[Arm, CellRecord]:
    """Return a run's cells by what was timed: on one device strong and weak are one."""
    found: dict[Arm, CellRecord] = {}
    for cell in record.cells:
        found.setdefault(planned.arm("candidate", cell.trainer, Cell(*cell.place)), cell)
    return found


def _ratio(a: Record, b: Record, first: CellRecord, second: CellRecord) -> tuple[Interval | None, str]:
    """Return seconds of the second over the first, or why they must not be divided."""
    workload, times = first.workload, [cell.sec_per_epoch for cell in (first, second)]
    if a.machine.key != b.machine.key:
        return None, f"different machines ({a.machine.key}, {b.machine.key})"
    known_s = [time.estimate for time in times if time is not None and time.estimate > 0]
    ratio = known_s[1] / known_s[0] if len(known_s) == 2 else 0.0
    if not 0 < ratio < float("inf"):
        return None, "not measured in both"
    if workload not in a.workload_hashes or a.workload_hashes[workload] != b.workload_hashes.get(workload):
        return None, f"workload {workload} is defined differently in the two runs"
    if a.datasets.get(workload) != b.datasets.get(workload):
        return None, f"workload {workload} was timed on different data"
    if first.oversubscribed != second.oversubscribed:
        return None, "oversubscribed in one of the two runs alone"
    return Interval(ratio), ""


def around(first: Record, second: Record) -> list[Difference]:
    """Return what is not the same around the two runs; of workloads and datasets, those that both have."""
    both = zip(_around(first), _around(second), strict=True)
    changed = [change for before, after in both for change in differences(before, after)]
    for what, field in (("definition of workload", "workload_hashes"), ("dataset of", "datasets")):
        names = ({f"{what} {name}": value for name, value in getattr(run, field).items()} for run in (first, second))
        changed += differences(*names, common=True)
    return changed


def _around(record: Record) -> Iterator[dict[str, object]]:
    """Yield what a run says of its machine, of the software on it, and of what was asked."""
    machine, code = record.machine, record.environment
    cards = {f"GPU {card.index} ({card.id})": card.words for card in machine.cards}
    parts = {**machine.model_dump(exclude={"cards"}), **cards}
    yield {f"machine {name}": value for name, value in parts.items()}
    changes = " with uncommitted changes" if code.dirty else ""
    yield {"commit": code.commit + changes, **code.versions, **code.variables}
    yield {name: getattr(record, name) for name in ("tolerance", "against", "settings")}


def document(first: Record, second: Record) -> Document:
    """Return both runs as one page, with the pictures of a run for both."""
    found, changed, rules = compare(first, second), around(first, second), Rules((1.0,), log=True)
    caption, rows = "Each cell in both runs; the line is at no difference", [pair.row for pair in found.pairs]
    table = Table.of(caption, COLUMNS, rows, numbers={*COLUMNS[1:]} - {DRAWN}, rules=rules)
    charts = _speedups(first, second, found.pairs)
    differing = Table.of("What is not the same in both runs", ("what", "first", "second"), changed)
    sections = (
        Section("cells", "Cells", (*([table] if rows else []), Lines(tuple(remarks(found))))),
        *([Section("scaling", "Speed-up", (charts,))] if charts.charts else []),
        *([Section("differences", "What differs", (differing,))] if changed else []),
    )
    slowest = sorted((pair for pair in found.pairs if pair.ratio), key=_estimate, reverse=True)
    dots = [Row(pair.name, Span.dot(pair.ratio), figures.interval(pair.ratio, ".3f")) for pair in slowest]
    title = "Time of the second run / time of the first; the line is at no difference"
    ratios = Intervals(title, tuple(dots[:MAX_NAMES]), rules, len(dots[MAX_NAMES:]))
    runs = (("first", first), ("second", second))
    headings = tuple(f"{which}: {run.run_id}, commit {figures.commit(run.environment)}" for which, run in runs)
    shown = First(
        "", TITLE, pictures=(*([ratios] if dots else []), *map(stack, _apart(found.pairs))), why=tuple(headings)
    )
    return Document(TITLE, shown, sections)


def _estimate(pair: Pair) -> float:
    return pair.ratio.estimate if pair.ratio else 1.0


def _apart(pairs: list[Pair]) -> Iterator[CellRecord]:
    """Yield the cell that differs most of those that both runs took apart, with the waterfalls of both."""
    apart = [pair for pair in pairs if pair.first.own_waterfall and pair.second.own_waterfall]
    for pair in sorted(apart, key=lambda pair: abs(_estimate(pair) - 1.0), reverse=True)[:1]:
        falls = {"second": pair.second.own_waterfall, "first": pair.first.own_waterfall}
        sides = [fall.model_copy(update={"side": side}) for side, fall in falls.items() if fall]
        yield pair.second.model_copy(update={"waterfalls": tuple(sides)})


def _speedups(first: Record, second: Record, pairs: list[Pair]) -> Charts:
    """Return the speed-ups of each workload in both runs; the first run's are hollow."""
    charts = []
    for workload in dict.fromkeys(pair.second.workload for pair in pairs):
        before, after = speedups(first, workload), speedups(second, workload)
        if after is not None:
            measured = [each for each in (before.series if before else ()) if each.kind == "measured"]
            older = (replace(each, name=f"{each.name}, first", kind="base", like=each.name) for each in measured)
            charts.append(replace(after, series=(*after.series, *older)))
    return Charts(tuple(charts))


def remarks(found: Comparison) -> list[str]:
    """Return remarks on the ratios, and the cells that one run alone has."""
    notes = [note for note in dict.fromkeys(pair.note for pair in found.pairs) if note]
    lines = [f"Times are not divided: {note}." for note in notes[:MAX_NOTES]]
    if not found.pairs:
        lines.append("No cell is in both runs; measure the same trainers, workloads, modes and world sizes in both.")
    if any(pair.ratio is not None for pair in found.pairs):
        lines.append(NO_VERDICT)
    alone = (("first", found.only_first), ("second", found.only_second))
    return lines + [f"Only in the {which} run: {figures.some(names, MAX_NAMES)}." for which, names in alone if names]
