"""Two runs side by side: in the terminal, as Markdown, and as a page."""

from __future__ import annotations

from collections.abc import Iterable

from suite.records.comparison import Comparison, Pair, StepPart
from suite.render import figures
from suite.render.html.chart import Span, strips
from suite.render.html.environment import bounded, page
from suite.render.markdown import fitted, table
from suite.render.markdown import text as plain
from suite.render.screen import Screen

DIFFERENCE_COLUMNS = ("what", "first", "second")
COLUMNS = ("cell", "sec/epoch, first → second", "second / first", "in words", "efficiency", "accuracy", "verdict")
PART_COLUMNS = ("part", "ms a step, first", "ms a step, second", "grew by")
MAX_STEPS = 24  # cells whose steps are compared part by part
MAX_NAMES = 12  # of cells that one run alone has
MAX_NOTES = 20
EACH_FOR_ITSELF = (
    "Each interval is a 95 % interval of its own: of twenty cells that did not change, one looks changed. A verdict "
    "takes a base in the same run (--scaling-against)."
)


def terminal(comparison: Comparison, width: int, *, color: bool) -> str:
    """Return tables of what differs, of the cells, and of the parts of their steps, for so many columns."""
    screen = Screen(width, color=color)
    for line in headings(comparison):
        screen.line(line)
    if comparison.differences:
        screen.table(DIFFERENCE_COLUMNS, comparison.differences, left=DIFFERENCE_COLUMNS)
    screen.table(COLUMNS, map(_row, comparison.pairs), left=COLUMNS[:1])
    for line in remarks(comparison):
        screen.line(line)
    for pair in _grown(comparison):
        screen.line(f"\n{pair.name}: {pair.grew}")
        screen.table(PART_COLUMNS, map(_part, pair.parts), left=PART_COLUMNS[:1])
    return screen.text()


def to_markdown(comparison: Comparison) -> str:
    """Return both runs as Markdown, for a comment on a pull request. Text from the records is escaped."""
    first = ["# Two runs", "", *(f"- {plain(line)}" for line in headings(comparison)), ""]
    differing = ["## What differs", "", *table(DIFFERENCE_COLUMNS, comparison.differences)]
    return fitted(
        first,
        [
            differing if comparison.differences else [],
            ["## Cells", "", *table(COLUMNS, map(_row, comparison.pairs))],
            [*(f"- {plain(line)}" for line in remarks(comparison)), ""],
            *(
                [f"### {plain(pair.name)}", "", plain(pair.grew), "", *table(PART_COLUMNS, map(_part, pair.parts))]
                for pair in _grown(comparison)
            ),
        ],
    )


def to_html(comparison: Comparison) -> str:
    """Return both runs as one self-contained page."""
    ratios = [pair.ratio for pair in comparison.pairs]
    spans = [None if ratio is None else Span(1.0, ratio.estimate, ratio.low, ratio.high) for ratio in ratios]
    drawn = strips(spans, [1.0], log=True)
    rows = ((*_row(pair), strip) for pair, strip in zip(comparison.pairs, drawn, strict=True))
    return page(
        "compare.html.j2",
        headings=headings(comparison),
        differences=bounded(comparison.differences, len(comparison.differences)),
        columns=(*COLUMNS, "faster ← → slower"),
        cells=bounded(rows, len(comparison.pairs)),
        remarks=remarks(comparison),
        part_columns=PART_COLUMNS,
        steps=[(pair.name, pair.grew, list(map(_part, pair.parts))) for pair in _grown(comparison)],
    )


def headings(comparison: Comparison) -> list[str]:
    """Return a line on each run."""
    lines = []
    for which, record in (("first", comparison.first), ("second", comparison.second)):
        outcomes = figures.headline(cell.outcome for cell in record.cells)
        lines.append(f"{which}: {record.run_id}, commit {figures.commit(record.environment)}, {outcomes}")
    return lines


def remarks(comparison: Comparison) -> list[str]:
    """Return remarks on the ratios, and the cells that one run alone has."""
    lines = [f"{note[0].upper()}{note[1:]}." for note in comparison.notes[:MAX_NOTES]]
    if not comparison.pairs:
        lines.append("No cell is in both runs; measure the same trainers, workloads, modes and world sizes in both.")
    if any(pair.word for pair in comparison.pairs):
        lines.append(EACH_FOR_ITSELF)
    for which, names in (("first", comparison.only_first), ("second", comparison.only_second)):
        if names:
            lines.append(f"Only in the {which} run: {figures.some(names, MAX_NAMES)}.")
    return lines


def _row(pair: Pair) -> tuple[str, ...]:
    """Return one line of the table, in the order of `COLUMNS`."""
    cells = (pair.first, pair.second)
    return (
        pair.name,
        _both(figures.interval(cell.sec_per_epoch, ".3g") for cell in cells),
        figures.interval(pair.ratio, ".3f"),
        pair.word,
        _both(figures.interval(cell.efficiency, ".2f", bounds=False) for cell in cells),
        _both(figures.accuracy(cell) for cell in cells),
        _both(cell.outcome.value for cell in cells),
    )


def _both(texts: Iterable[str]) -> str:
    first, second = texts
    return first if first == second == "-" else f"{first} → {second}"


def _grown(comparison: Comparison) -> list[Pair]:
    """Return the cells whose steps can be compared, those that grew most first."""
    grown = [pair for pair in comparison.pairs if pair.grew]
    return sorted(grown, key=lambda pair: pair.parts[-1].grew_s, reverse=True)[:MAX_STEPS]


def _part(part: StepPart) -> tuple[str, ...]:
    times = (figures.interval(time, ".2f", factor=1e3) for time in (part.first, part.second))
    return part.name, *times, figures.number(part.grew_s * 1e3, "+.2f")
