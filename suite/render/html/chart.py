"""Where everything in a line chart, and in the bars of a table, has its place; templates draw it as inline SVG.

Series differ in colour, marker and dash, so that colour is never needed. docs/adr/0015 says why no library does this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from suite.render import scale
from suite.render.document import MAX_SERIES, Axis, Chart, Point, Series, Span
from suite.render.figures import number
from suite.render.scale import Scale

WIDTH, HEIGHT = 360, 230  # a picture is not magnified much, so that its text has about the size of the page's
LEFT, RIGHT, TOP, BOTTOM = 52, 346, 26, 190
STYLES = MAX_SERIES // 2  # colours, markers and dashes; as many series again are drawn hollow
MAX_NAME = 80  # characters of a series' name
BAND_FROM = 30  # points: from here on an interval is a band, because whiskers would touch
MAX_NUMBERS = 100  # points of a series that have a marker, and rows of a chart's table: the last ones
MAX_TICKS = 10
DODGE = 5  # pixels between series at the same place
WIDEST = 0.75  # of its value: a whisker that is longer ends at the edge
DODGED_UP_TO = 8  # points of a series: more are too close to each other for it


class Dot(NamedTuple):
    """The place of a point, in pixels, and its text."""

    x: float
    y: float
    low: float | None
    high: float | None
    text: str


class Drawn(NamedTuple):
    """The place of a series: its line and band as SVG paths, empty where there is none."""

    name: str
    style: str
    marker: int | None
    line: str
    band: str
    dots: list[Dot]


def content(chart: Chart) -> dict[str, object]:
    """Return what `chart.html.j2` makes a `<figure>` of: the picture, its legend, and a fold with its numbers."""
    x, y = axes(chart)
    points = [(series, point) for series in chart.series for point in series.points]
    told = [each for each in points if each[0].kind != "ideal"][-MAX_NUMBERS:]
    return {
        "chart": chart,
        "size": (WIDTH, HEIGHT),
        "box": {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
        "x_ticks": _ticks(chart.x, x),
        "y_ticks": _ticks(chart.y, y),
        "drawn": draw(chart),
        "marks": [(x(mark.x), mark.label) for mark in chart.marks],
        "left_out": sum(not _drawable(chart, point) for _, point in points),
        "numbers": [_row(chart, series, point) for series, point in told],
    }


def axes(chart: Chart) -> tuple[Scale, Scale]:
    """Return the scales on which everything in a chart has a place."""
    points = [point for series in chart.series for point in series.points]
    xs = [*(point.x for point in points), *(mark.x for mark in chart.marks), *chart.x.include]
    ys = [value for point in points for value in (point.y, *_reach(point))]
    return (
        scale.fit(xs, LEFT + 8, RIGHT - 8, log=chart.x.log),
        scale.fit([*ys, *chart.y.include], BOTTOM, TOP, log=chart.y.log),
    )


def _reach(point: Point) -> list[float]:
    """Return the bounds of a point as far as an axis reaches for them: those of two sessions may be anything."""
    furthest = WIDEST * abs(point.y)
    found = [bound for bound in (point.low, point.high) if bound is not None]
    return [min(max(bound, point.y - furthest), point.y + furthest) for bound in found]


def draw(chart: Chart) -> list[Drawn]:
    """Return the places of all series."""
    x, y = axes(chart)
    measured = [series.name for series in chart.series if series.kind == "measured"]
    few = max((len(series.points) for series in chart.series), default=0) <= DODGED_UP_TO
    drawn = []
    for series in chart.series:
        shown_as = series.name if series.kind == "measured" else series.like
        place = measured.index(shown_as) if shown_as in measured else None
        shift = 0.0 if place is None or not few else (place - (len(measured) - 1) / 2) * DODGE
        dots = [
            Dot(
                x(point.x) + shift,
                y(point.y),
                _place(y, point.low),
                _place(y, point.high),
                _words(chart, series, point),
            )
            for point in series.points
            if _drawable(chart, point)
        ]
        line = _path((dot.x, dot.y) for dot in dots) if series.joined and len(dots) > 1 else ""
        band = _band(dots) if len(dots) >= BAND_FROM else ""
        if len(dots) >= BAND_FROM:
            dots = [dot._replace(low=None, high=None) for dot in dots[-MAX_NUMBERS:]]
        marker = None if series.kind == "ideal" else (place or 0) % STYLES
        styles = [] if place is None else [f"s{place % STYLES}", "second" if place >= STYLES else ""]
        style = " ".join(filter(None, [*styles, "" if series.kind == "measured" else series.kind]))
        drawn.append(Drawn(_name(series), style, marker, line, band, dots))
    return drawn


def _ticks(axis: Axis, scaled: Scale) -> list[tuple[float, str]]:
    chosen = axis.ticks if 0 < len(axis.ticks) <= MAX_TICKS else scale.ticks(scaled)
    return [(scaled(value), text) for value, text in chosen if scaled.low <= value <= scaled.high]


def _drawable(chart: Chart, point: Point) -> bool:
    return scale.drawable(point.x, log=chart.x.log) and scale.drawable(point.y, log=chart.y.log)


def _place(axis: Scale, value: float | None) -> float | None:
    return axis(value) if value is not None and scale.drawable(value, log=axis.log) else None


def _band(dots: Sequence[Dot]) -> str:
    bounds = [(dot.x, dot.low, dot.high) for dot in dots if dot.low is not None and dot.high is not None]
    places = [*((x, high) for x, _, high in bounds), *((x, low) for x, low, _ in reversed(bounds))]
    return f"{_path(places)}Z" if len(bounds) > 1 else ""


def _name(series: Series) -> str:
    return series.name if len(series.name) <= MAX_NAME else f"{series.name[:MAX_NAME]} …"


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _words(chart: Chart, series: Series, point: Point) -> str:
    """Return a point in words."""
    name, x, y, interval, note = _row(chart, series, point)
    return f"{name}, {chart.x.label} {x}: {y} {interval}".rstrip() + (f" ({note})" if note else "")


def _row(chart: Chart, series: Series, point: Point) -> tuple[str, str, str, str, str]:
    """Return a row of the table: series, x, y, interval, note."""
    x, form = dict(chart.x.ticks).get(point.x, number(point.x, chart.x.form)), chart.y.form
    interval = ""
    if point.low is not None and point.high is not None:
        interval = f"[{number(point.low, form)}, {number(point.high, form)}]"
    return _name(series), x, number(point.y, form), interval, point.note


class Strip(NamedTuple):
    """A bar in a table's cell, in percent of the axis that all rows share; `rules` are lines across it."""

    style: str
    start: float | None
    end: float | None
    low: float | None
    high: float | None
    rules: list[float]


def strips(spans: Sequence[Span | None], rules: Sequence[float] = (), *, log: bool = False) -> Iterator[Strip]:
    """Yield the bars of a table's rows, all on one axis, with a line across every row at each value of `rules`.

    None, or a span that has no place on the axis, makes an empty strip.
    """
    ends = [value for span in spans if span is not None for value in span[:4] if value is not None]
    axis = scale.fit([*ends, *rules], 0.0, 100.0, log=log)
    lines = [axis(rule) for rule in rules]
    for span in spans:
        start, end, low, high = (_place(axis, value) for value in (span[:4] if span else (None,) * 4))
        style = "nothing" if span is None or start is None or end is None else span.style
        yield Strip(style, start, end, low, high, lines)
