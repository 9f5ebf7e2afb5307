"""A document as one self-contained HTML page: it loads nothing, runs nothing, and needs no network.

One jinja2 environment makes every page, and in it what comes from a record can only ever be text: autoescape is on, no
template marks anything as safe, and an undefined name is an error. Texts are limited in length, and made legible, when
they are written into a page, because a record may hold any character. docs/report.md is the tour of a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, singledispatch
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from suite.records.baselines import Baseline
from suite.records.record import Record
from suite.render import report
from suite.render.commands import fits
from suite.render.document import (
    MAX_TEXT,
    SHOWN,
    Badge,
    Block,
    Chart,
    Charts,
    Command,
    Document,
    Drawn,
    Fold,
    Grid,
    Intervals,
    Link,
    Piece,
    Rules,
    Span,
    Stack,
    Table,
    Value,
)
from suite.render.figures import legible, plural
from suite.render.html import chart

LINKS = (("../../index.html", "History of this machine"), ("summary.md", "summary.md"), ("record.json", "record.json"))
MADE = "Made by torch-scaling-suite from record.json. This page loads nothing and runs nothing."


def render(record: Record, baseline: Baseline | None = None) -> str:
    """Return the page of a run, for its folder, two below that of its machine."""
    return write(report.document(record, baseline), LINKS, MADE)


def write(document: Document, links: Sequence[tuple[str, str]] = (), made: str = "") -> str:
    """Return a document as a page; `links` are address and text of other files, `made` says how the page is made."""
    sections = [(section, _all(section.blocks)) for section in document.sections]
    first = document.first
    pictures = [(isinstance(picture, Stack), _html(picture)) for picture in first.pictures]
    template = environment().get_template("document.html.j2")
    return template.render(document=document, first=first, pictures=pictures, sections=sections, links=links, made=made)


def _all(blocks: Sequence[Block]) -> Markup:
    return Markup("").join(map(_html, blocks))


@singledispatch
def _html(block: object) -> Markup:
    """Return a part as the macro of its class's name makes it; those that need more have a function of their own."""
    return macro(type(block).__name__.lower(), block)


@_html.register
def _table(table: Table) -> Markup:
    """Return the rows in view, and the others behind a fold; bars of a column share an axis."""
    drawn = table.drawn
    spans = [span for row in table.rows for at in drawn for span in _spans(row[at])]
    bars = _strips(spans, table.rules)
    rows = [
        [
            Markup("").join(next(bars) for _ in _spans(value)) if at in drawn else _value(value)
            for at, value in enumerate(row)
        ]
        for row in table.rows
    ]
    classes = dict.fromkeys(drawn, "drawn")
    classes |= {at: "n" for at, name in enumerate(table.columns) if name in table.numbers}
    classes |= {at: "why" for at, name in enumerate(table.columns) if name in table.long}
    return macro("table", table, rows[:SHOWN], rows[SHOWN:], classes)


def _strips(spans: Sequence[Span | None], rules: Rules) -> Iterator[Markup]:
    return (macro("strip", *strip) for strip in chart.strips(spans, rules.at, log=rules.log))


def _spans(value: Value) -> tuple[Span | None, ...]:
    return value.spans if isinstance(value, Drawn) else ()


def _value(value: Value) -> str:
    match value:
        case Badge():
            return macro("badge", value.outcome, value.counts)
        case Link():
            return macro("link", value.text, value.address)
        case Command():
            return macro("command", value.text)
        case _:
            return str(value)


@_html.register
def _charts(charts: Charts) -> Markup:
    chosen = [
        (name, list(dict.fromkeys(each.groups[at] for each in charts.charts))) for at, name in enumerate(charts.filters)
    ]
    classes = [
        " ".join(f"f{at}-{chosen[at][1].index(value)}" for at, value in enumerate(each.groups[: len(chosen)]))
        for each in charts.charts
    ]
    figures = [figure(each) for each in charts.charts]
    filters = [(at, name, values) for at, (name, values) in enumerate(chosen) if len(values) > 1]
    return macro("charts", list(zip(figures, classes, strict=True)), charts.paired, filters)


@_html.register
def figure(drawn: Chart) -> Markup:
    """Return a chart as a `<figure>` with its legend and a fold with its numbers."""
    return _made(environment().get_template("chart.html.j2").render(chart.content(drawn)))


@_html.register
def _intervals(picture: Intervals) -> Markup:
    bars = _strips([row.span for row in picture.rows], picture.rules)
    return macro("intervals", picture, list(zip(picture.rows, bars, strict=True)))


class _Place(NamedTuple):
    """Where a piece of a stacked bar is, in percent, and its colour; one that saves time has no place."""

    piece: Piece
    start: float | None
    width: float | None
    style: str


@_html.register
def _stack(picture: Stack) -> Markup:
    """Return stacked bars on one axis; a piece has the same colour in each."""
    longest = max(sum(max(piece.size, 0.0) for piece in bar.pieces) for bar in picture.bars) or 1.0
    names = list(dict.fromkeys(piece.name for bar in picture.bars for piece in bar.pieces))
    bars = []
    for bar in picture.bars:
        at, places = 0.0, []
        for piece in bar.pieces:
            number = names.index(piece.name)
            style = "ideal" if number == 0 else f"p{(number - 1) % chart.STYLES}"
            drawn = 0.0 < piece.size < float("inf")
            width = 100 * piece.size / longest if drawn else None
            places.append(_Place(piece, 100 * at / longest if drawn else None, width, style))
            at += piece.size if drawn else 0.0
        bars.append((bar, places))
    return macro("stack", picture, bars)


@_html.register
def _grid(grid: Grid) -> Markup:
    return macro("multiples", [_all(group) for group in grid.groups])


@_html.register
def _fold(fold: Fold) -> Markup:
    return macro("fold", fold, _all(fold.blocks))


@cache
def environment() -> Environment:
    """Return the templates of this folder."""
    environment = Environment(
        loader=PackageLoader(__name__, package_path="."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_fit,
    )
    environment.globals |= {"plural": plural, "fits": fits}
    return environment


def macro(name: str, *arguments: object) -> Markup:
    """Return what a macro of `macros.html.j2` makes of these arguments."""
    return _made(getattr(environment().get_template("macros.html.j2").module, name)(*arguments))


def _made(text: str) -> Markup:
    """Return what a template has made, which escapes."""
    return Markup(text)  # noqa: S704


def _fit(value: object) -> object:
    # Markup was made by a macro or a chart: its texts came through here already.
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    cut = value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]} … (cut here; record.json has it whole)"
    return legible(cut)
