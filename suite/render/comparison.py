"""Two runs side by side: in the terminal, as Markdown, and as a page."""

from __future__ import annotations

from suite.records.comparison import Comparison, Pair
from suite.render import figures
from suite.render.html.chart import Span, strips
from suite.render.html.environment import bounded, page
from suite.render.markdown import fitted, table
from suite.render.markdown import text as plain
from suite.render.screen import Screen

DIFFERENCE_COLUMNS = ("what", "first", "second")
COLUMNS = ("cell", "sec/epoch, first → second", "second / first", "efficiency", "accuracy")
MAX_NAMES = 12  # of cells that one run alone has
MAX_NOTES = 20
NO_VERDICT = (
    "Each interval is over the sessions of its own run. Runs of different hours differ by more, so a ratio has no "
    "interval and is no verdict: to get one, measure both in one run (--scaling-against)."
)


def terminal(comparison: Comparison, width: int, *, color: bool) -> str:
    """Return tables of the cells and of what differs, for so many columns."""
    screen = Screen(width, color=color)
    screen.line("\n".join(headings(comparison)))
    screen.table(COLUMNS, map(_row, comparison.pairs), left=COLUMNS[:1])
    screen.line("\n".join(remarks(comparison)))
    if comparison.differences:
        screen.table(DIFFERENCE_COLUMNS, comparison.differences, left=DIFFERENCE_COLUMNS)
    return screen.text()


def to_markdown(comparison: Comparison) -> str:
    """Return both runs as Markdown, for a comment on a pull request. Text from the records is escaped."""
    differing = ["## What differs", "", *table(DIFFERENCE_COLUMNS, comparison.differences)]
    return fitted(
        ["# Two runs", "", *(f"- {plain(line)}" for line in headings(comparison)), ""],
        [
            ["## Cells", "", *table(COLUMNS, map(_row, comparison.pairs))],
            [*(f"- {plain(line)}" for line in remarks(comparison)), ""],
            differing if comparison.differences else [],
        ],
    )


def to_html(comparison: Comparison) -> str:
    """Return both runs as one self-contained page."""
    spans = [None if pair.ratio is None else Span(1.0, pair.ratio) for pair in comparison.pairs]
    drawn = strips(spans, [1.0], log=True)
    rows = ((*_row(pair), strip) for pair, strip in zip(comparison.pairs, drawn, strict=True))
    return page(
        "compare.html.j2",
        headings=headings(comparison),
        differences=bounded(comparison.differences, len(comparison.differences)),
        columns=(*COLUMNS, "faster ← → slower"),
        cells=bounded(rows, len(comparison.pairs)),
        remarks=remarks(comparison),
    )


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


def _row(pair: Pair) -> tuple[str, ...]:
    """Return one line of the table, in the order of `COLUMNS`."""
    cells = (pair.first, pair.second)
    times = (figures.interval(cell.sec_per_epoch, ".3g") for cell in cells)
    efficiencies = (figures.interval(cell.efficiency, ".2f") for cell in cells)
    both = [" → ".join(texts).replace("- → -", "-") for texts in (times, efficiencies, map(figures.accuracy, cells))]
    return (pair.name, both[0], "-" if pair.ratio is None else figures.number(pair.ratio, ".3f"), *both[1:])
