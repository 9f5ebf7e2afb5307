"""Two runs side by side, as a document."""

from __future__ import annotations

from suite.records.comparison import Comparison, Pair
from suite.records.record import CellRecord
from suite.render import figures
from suite.render.document import (
    Block,
    Chart,
    Charts,
    Document,
    Drawn,
    First,
    Intervals,
    Lines,
    Row,
    Rules,
    Section,
    Series,
    Span,
    Stack,
    Table,
    Value,
)
from suite.render.sections.lost_time import stack
from suite.render.sections.scaling import speedups

DIFFERENCE_COLUMNS = ("what", "first", "second")
DRAWN = "faster ← → slower"
COLUMNS = ("cell", "sec/epoch, first → second", "second / first", DRAWN, "efficiency", "accuracy")
MAX_NAMES = 12  # of cells that one run alone has
MAX_NOTES = 20
NO_VERDICT = (
    "Each interval is over the sessions of its own run. Runs of different hours differ by more, so a ratio has no "
    "interval and is no verdict: to get one, measure both in one run (--scaling-against)."
)


def document(comparison: Comparison) -> Document:
    """Return both runs as one page, with the pictures of a run for both."""
    pictures = tuple(picture for picture in (_ratios(comparison), _lost(comparison)) if picture is not None)
    cells: list[Block] = []
    if comparison.pairs:
        rows = map(_row, comparison.pairs)
        caption = "Each cell in both runs; the line is at no difference"
        cells.append(
            Table.of(
                caption,
                COLUMNS,
                rows,
                numbers=[column for column in COLUMNS[1:] if column != DRAWN],
                rules=Rules((1.0,), log=True),
                total=len(comparison.pairs),
            )
        )
    if notes := remarks(comparison):
        cells.append(Lines(tuple(notes)))
    differing = Table.of(
        "What is not the same in both runs",
        DIFFERENCE_COLUMNS,
        comparison.differences,
        total=len(comparison.differences),
    )
    return Document(
        "Two runs side by side",
        First("", "Two runs side by side", pictures=pictures, why=tuple(headings(comparison))),
        (
            Section("cells", "Cells", tuple(cells)),
            *([Section("scaling", "Speed-up", (charts,))] if (charts := _speedups(comparison)).charts else []),
            *([Section("differences", "What differs", (differing,))] if comparison.differences else []),
        ),
    )


def _dot(pair: Pair) -> Span | None:
    return None if pair.ratio is None else Span(pair.ratio, pair.ratio)


def _ratios(comparison: Comparison) -> Intervals | None:
    """Return the times of the second run over those of the first, the slowest first."""
    known = [pair for pair in comparison.pairs if pair.ratio is not None]
    known.sort(key=lambda pair: pair.ratio or 0.0, reverse=True)
    rows = [Row(pair.name, _dot(pair), figures.number(pair.ratio or 0.0, ".3f")) for pair in known]
    title = "Time of the second run / time of the first; the line is at no difference"
    return Intervals(title, tuple(rows[:MAX_NAMES]), Rules((1.0,), log=True), len(rows[MAX_NAMES:])) if rows else None


def _lost(comparison: Comparison) -> Stack | None:
    """Return where the time went in both runs, of the cell that differs most of those that both took apart."""
    apart = [pair for pair in comparison.pairs if pair.first.own_waterfall and pair.second.own_waterfall]
    most = max(apart, key=lambda pair: abs((pair.ratio or 1.0) - 1.0), default=None)
    if most is None:
        return None
    sides = [
        side.model_copy(update={"side": which})
        for which, cell in (("second", most.second), ("first", most.first))
        if (side := cell.own_waterfall)
    ]
    return stack(CellRecord.model_copy(most.second, update={"waterfalls": tuple(sides)}))


def _speedups(comparison: Comparison) -> Charts:
    """Return the speed-ups of each workload in both runs; the first run's are hollow."""
    charts: list[Chart] = []
    for workload in dict.fromkeys(pair.second.workload for pair in comparison.pairs):
        first, second = (speedups(run, workload) for run in (comparison.first, comparison.second))
        if second is not None:
            older = [
                Series(f"{each.name}, first", each.points, kind="base", like=each.name)
                for each in (first.series if first else ())
                if each.kind == "measured"
            ]
            charts.append(Chart(second.title, second.x, second.y, (*second.series, *older)))
    return Charts(tuple(charts))


def headings(comparison: Comparison) -> list[str]:
    """Return a line on each run."""
    runs = (("first", comparison.first), ("second", comparison.second))
    return [f"{which}: {run.run_id}, commit {figures.commit(run.environment)}" for which, run in runs]


def remarks(comparison: Comparison) -> list[str]:
    """Return remarks on the ratios, and the cells that one run alone has."""
    notes = [note for note in dict.fromkeys(pair.note for pair in comparison.pairs) if note]
    lines = [f"Times are not divided: {note}." for note in notes[:MAX_NOTES]]
    if not comparison.pairs:
        lines.append("No cell is in both runs; measure the same trainers, workloads, modes and world sizes in both.")
    if any(pair.ratio is not None for pair in comparison.pairs):
        lines.append(NO_VERDICT)
    for which, names in (("first", comparison.only_first), ("second", comparison.only_second)):
        if names:
            lines.append(f"Only in the {which} run: {figures.some(names, MAX_NAMES)}.")
    return lines


def _row(pair: Pair) -> tuple[Value, ...]:
    """Return one line of the table, in the order of `COLUMNS`."""
    cells = (pair.first, pair.second)
    times = (figures.interval(cell.sec_per_epoch, ".3g") for cell in cells)
    efficiencies = (figures.interval(cell.efficiency, ".2f") for cell in cells)
    both = [" → ".join(texts).replace("- → -", "-") for texts in (times, efficiencies, map(figures.accuracy, cells))]
    ratio = "-" if pair.ratio is None else figures.number(pair.ratio, ".3f")
    return (pair.name, both[0], ratio, Drawn((_dot(pair),)), *both[1:])
