"""Two runs side by side: in the terminal, as Markdown, and as a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from suite.records.comparison import Comparison, Pair, Part
from suite.records.record import IntervalRecord, Record
from suite.render import figures
from suite.render.html.bounds import bounded
from suite.render.html.chart import Span, Strip, strips
from suite.render.html.environment import page
from suite.render.markdown import text as plain
from suite.render.screen import Screen

DIFFERENCE_COLUMNS = ("what", "first", "second")
COLUMNS = ("cell", "sec/epoch, first → second", "second / first", "in words", "efficiency", "accuracy", "verdict")
PART_COLUMNS = ("part", "ms a step, first", "ms a step, second", "grew by")
MAX_STEPS = 24  # cells whose steps are laid side by side
MAX_CELLS = 1_000  # in a table of text
MAX_NOTES = 20
EACH_FOR_ITSELF = (
    "Intervals are 95 %, each for itself: of twenty cells that are as they were, one looks changed. A verdict takes a "
    "base in the same run (--scaling-against)."
)


class Step(NamedTuple):
    """A cell's step in both runs, taken apart."""

    cell: str
    grew: str
    rows: tuple[tuple[str, ...], ...]


def terminal(found: Comparison, width: int, *, color: bool) -> str:
    """Tables of what differs, of the cells, and of the parts of their steps.

    Args:
        found: the two runs.
        width: columns of the terminal.
        color: whether to add colours; the words say the same without them.
    """
    screen = Screen(width, color=color)
    for line in headings(found):
        screen.line(line)
    if found.differences:
        screen.table(DIFFERENCE_COLUMNS, _differences(found), left=DIFFERENCE_COLUMNS)
    screen.table(COLUMNS, map(_row, found.pairs[:MAX_CELLS]), left=COLUMNS[:1])
    for line in _text_remarks(found):
        screen.line(line)
    for step in _steps(found):
        screen.line(f"\n{step.cell}: {step.grew}")
        screen.table(PART_COLUMNS, step.rows, left=PART_COLUMNS[:1])
    return screen.text()


def to_markdown(found: Comparison) -> str:
    """The same for a comment on a pull request. Text from the records is escaped."""
    lines = ["# Two runs", "", *(f"- {plain(line)}" for line in headings(found)), ""]
    if found.differences:
        lines += ["## What differs", "", *_markdown(DIFFERENCE_COLUMNS, _differences(found)), ""]
    lines += ["## Cells", "", *_markdown(COLUMNS, map(_row, found.pairs[:MAX_CELLS])), ""]
    lines += [*(f"- {plain(line)}" for line in _text_remarks(found)), ""]
    for step in _steps(found):
        lines += [f"### {plain(step.cell)}", "", plain(step.grew), ""]
        lines += [*_markdown(PART_COLUMNS, step.rows), ""]
    return "\n".join(lines)


def to_html(found: Comparison) -> str:
    """The same as one self-contained page."""
    drawn = strips([_span(pair.ratio) for pair in found.pairs], [1.0], log=True)
    rows: Iterator[tuple[str | Strip, ...]] = (
        (*_row(pair), strip) for pair, strip in zip(found.pairs, drawn, strict=True)
    )
    return page(
        "compare.html.j2",
        headings=headings(found),
        differences=bounded(_differences(found)),
        columns=COLUMNS,
        cells=bounded(rows),
        remarks=remarks(found),
        part_columns=PART_COLUMNS,
        steps=list(_steps(found)),
    )


def headings(found: Comparison) -> tuple[str, str]:
    """Which two runs these are."""
    return f"first: {_run(found.first)}", f"second: {_run(found.second)}"


def remarks(found: Comparison) -> list[str]:
    """What is to be said of the cells: of their ratios, and of those that one run alone has."""
    lines = [f"{note[0].upper()}{note[1:]}." for note in found.notes[:MAX_NOTES]]
    if any(pair.word for pair in found.pairs):
        lines.append(EACH_FOR_ITSELF)
    for which, names in (("first", found.only_first), ("second", found.only_second)):
        if names:
            lines.append(f"Only in the {which} run: {_some(names)}.")
    return lines


def _text_remarks(found: Comparison) -> list[str]:
    """With how many cells have no row where there is no fold to put them behind."""
    more = len(found.pairs) - MAX_CELLS
    return [*remarks(found), *([f"{more} more cell(s) are not shown."] if more > 0 else [])]


def _run(record: Record) -> str:
    return f"{record.run_id}, commit {figures.commit(record)}, {figures.headline(record)}"


def _some(names: tuple[str, ...], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _differences(found: Comparison) -> Iterator[tuple[str, str, str]]:
    return ((each.what, each.first, each.second) for each in found.differences[:MAX_CELLS])


def _row(pair: Pair) -> tuple[str, ...]:
    """One line of the table, in the order of `COLUMNS`."""
    cells = (pair.first, pair.second)
    return (
        pair.name,
        _both(figures.interval(cell.sec_per_epoch, ".3g") for cell in cells),
        figures.interval(pair.ratio, ".3f"),
        pair.word,
        _both(figures.interval(cell.efficiency, ".2f", bounds=False) for cell in cells),
        _both("-" if cell.accuracy is None else figures.number(cell.accuracy, ".3f") for cell in cells),
        _both(cell.outcome.value for cell in cells),
    )


def _both(texts: Iterable[str]) -> str:
    first, second = texts
    return first if first == second == "-" else f"{first} → {second}"


def _steps(found: Comparison) -> Iterator[Step]:
    """The steps that can be compared, those that grew most first."""
    grown = [pair for pair in found.pairs if pair.grew]
    grown.sort(key=lambda pair: pair.parts[-1].grew_s, reverse=True)
    for pair in islice(grown, MAX_STEPS):
        yield Step(pair.name, pair.grew, tuple(map(_part, pair.parts)))


def _part(part: Part) -> tuple[str, ...]:
    times = (figures.interval(time, ".2f", factor=1e3) for time in (part.first, part.second))
    return part.name, *times, figures.number(part.grew_s * 1e3, "+.2f")


def _span(ratio: IntervalRecord | None) -> Span:
    if ratio is None:
        return Span(math.nan, math.nan)
    return Span(1.0, ratio.estimate, ratio.low, ratio.high)


def _markdown(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(map(plain, row)) + " |" for row in rows),
    ]
