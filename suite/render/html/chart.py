"""Line charts and bars as inline SVG, made by templates, with their numbers in a table beside them.

For every page of ours:

    from suite.render.html.chart import Axis, Chart, Mark, Point, Series, figure

    chart = Chart(
        title="Efficiency, strong scaling",
        x=Axis("devices", log=True, ticks=((1, "1"), (2, "2"))),
        y=Axis("efficiency", include=(0.0, 1.0), form=".2f"),
        series=(
            Series("ideal", (Point(1, 1.0), Point(2, 1.0)), kind="ideal"),
            Series("ddp", (Point(1, 1.0), Point(2, 0.84, low=0.81, high=0.87, note="4 sessions"))),
        ),
        marks=(Mark(1.5, "torch 2.15"),),
    )
    page("index.html.j2", charts=[figure(chart)])     # {{ charts[0] }}: it is Markup, what is in it is escaped

`figure` gives a `<figure>`: picture, legend, and a fold with the table. Several side by side go into a
`<div class="charts">`. A picture is 360 units wide (720 if `wide`) and is not magnified much: its text has about the
size of the page's, on a phone too. `strips` is for bars in the cells of a table (macro `strip` of `macros.html.j2`),
where the table itself has the numbers.

Own SVG instead of a plotting library's: text stays text (it can be found, copied and read aloud), colours come from the
page's variables and so follow the dark theme and paper, and a page of two hundred runs takes well under a second.
Series differ in colour, marker and dash, so that colour is never needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from suite.render.figures import number
from suite.render.html import scale
from suite.render.html.environment import environment
from suite.render.html.scale import Scale

WIDTH, HEIGHT = 360, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 26, 40
STYLES = 6  # colours, markers and dashes; as many series again are drawn hollow, and more cannot be told apart
MAX_SERIES = 2 * STYLES
MAX_NAME = 80  # characters of a series' name
BAND_FROM = 30  # points: from here on an interval is a band, because whiskers would touch
MAX_NUMBERS = 1_000  # rows of a chart's table
DODGE = 5  # pixels between series at the same place
DODGED_UP_TO = 8  # points of a series: more stand too close for it

Kind = Literal["measured", "ideal", "base"]


@dataclass(frozen=True)
class Point:
    """One value, with its interval where there is one; `note` is shown with it."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Series:
    """Points that belong together, drawn in the order given.

    Attributes:
        kind: "ideal" is a thin line without markers; "base" is hollow and dotted.
        like: of a "base", the name of the series whose colour and marker it shares; grey without one.
        joined: whether a line connects the points.
    """

    name: str
    points: tuple[Point, ...]
    kind: Kind = "measured"
    like: str = ""
    joined: bool = True


@dataclass(frozen=True)
class Mark:
    """A vertical line where something changed, and what."""

    x: float
    label: str


@dataclass(frozen=True)
class Axis:
    """What is along an edge.

    Attributes:
        label: with the unit.
        ticks: values and their wording; round numbers are chosen where there are none.
        include: values that must be in view.
        form: format of the numbers in the table.
    """

    label: str
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    include: tuple[float, ...] = ()
    form: str = ".4g"


@dataclass(frozen=True)
class Chart:
    """A picture and what it says in words, for those who do not see it.

    Attributes:
        interval: what the bounds of its points are.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    description: str = ""
    wide: bool = False
    interval: str = "95 % interval"


@dataclass(frozen=True)
class Dot:
    """A point's place, in pixels."""

    x: float
    y: float
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True)
class Drawn:
    """A series' place: its line and band as SVG paths, empty where there is none."""

    name: str
    style: str
    line: str
    band: str
    dots: tuple[Dot, ...]
    marker: int | None


@dataclass(frozen=True)
class Layout:
    """Where everything lies, in pixels."""

    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    drawn: tuple[Drawn, ...]
    marks: tuple[tuple[float, str], ...]
    left_out: int  # points that have no place on a logarithmic axis


def figure(chart: Chart) -> Markup:
    """The chart as a `<figure>` with its legend and, behind a fold, its numbers."""
    content = {"chart": chart, "layout": layout(chart), "numbers": numbers(chart)[:MAX_NUMBERS]}
    html = environment().get_template("chart.html.j2").render(content)
    return Markup(html)  # noqa: S704 - the output of a template that escapes


def layout(chart: Chart) -> Layout:
    """Where everything of a chart lies."""
    width = 2 * WIDTH if chart.wide else WIDTH
    left, right, top, bottom = float(LEFT), float(width - RIGHT), float(TOP), float(HEIGHT - BOTTOM)
    points = [point for series in chart.series for point in series.points]
    xs = [*(point.x for point in points), *(mark.x for mark in chart.marks), *chart.x.include]
    ys = [value for p in points for value in (p.y, p.low, p.high) if value is not None]
    x = scale.fit(xs, left + 8, right - 8, log=chart.x.log)
    y = scale.fit([*ys, *chart.y.include], bottom, top, log=chart.y.log)
    measured = [series.name for series in chart.series if series.kind == "measured"]
    few = max((len(series.points) for series in chart.series), default=0) <= DODGED_UP_TO
    drawn = []
    for series in chart.series:
        looks = series.name if series.kind == "measured" else series.like
        place = measured.index(looks) if looks in measured else None
        shift = (place - (len(measured) - 1) / 2) * DODGE if few and place is not None else 0.0
        drawn.append(_draw(chart, series, place, x, y, shift))
    return Layout(
        width=width,
        height=HEIGHT,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        x_ticks=_places(chart.x, x),
        y_ticks=_places(chart.y, y),
        drawn=tuple(drawn),
        marks=tuple((x(mark.x), mark.label) for mark in chart.marks if scale.drawable(mark.x, log=chart.x.log)),
        left_out=sum(not _drawable(chart, point) for point in points),
    )


def _places(axis: Axis, scaled: Scale) -> tuple[tuple[float, str], ...]:
    chosen = axis.ticks or scale.ticks(scaled)
    return tuple((scaled(value), text) for value, text in chosen if scaled.low <= value <= scaled.high)


def _drawable(chart: Chart, point: Point) -> bool:
    return scale.drawable(point.x, log=chart.x.log) and scale.drawable(point.y, log=chart.y.log)


def _draw(chart: Chart, series: Series, place: int | None, x: Scale, y: Scale, shift: float) -> Drawn:
    dots = []
    for point in series.points:
        if not _drawable(chart, point):
            continue
        ends = [point.low, point.high]
        low, high = (None if v is None or not scale.drawable(v, log=chart.y.log) else y(v) for v in ends)
        dots.append(Dot(x(point.x) + shift, y(point.y), low, high, describe(chart, series, point)))
    many = len(dots) >= BAND_FROM
    bounds = [(dot.x, dot.low, dot.high) for dot in dots if dot.low is not None and dot.high is not None]
    band = ""
    if many and len(bounds) > 1:
        band = _path([*((x, high) for x, _, high in bounds), *((x, low) for x, low, _ in reversed(bounds))]) + "Z"
    shown = [Dot(dot.x, dot.y, None, None, dot.text) for dot in dots] if many else dots
    line = _path([(dot.x, dot.y) for dot in dots]) if series.joined and len(dots) > 1 else ""
    style = [f"s{place % STYLES}"] if place is not None else []
    style += ["second"] if place is not None and place >= STYLES else []
    style += [series.kind] if series.kind != "measured" else []
    marker = None if series.kind == "ideal" else (place or 0) % STYLES
    return Drawn(_name(series), " ".join(style), line, band, tuple(shown), marker)


def _name(series: Series) -> str:
    return series.name if len(series.name) <= MAX_NAME else f"{series.name[:MAX_NAME]} …"


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def describe(chart: Chart, series: Series, point: Point) -> str:
    """A point in words."""
    x, y, interval = _texts(chart, point)
    found = f"{_name(series)}, {chart.x.label} {x}: {y} {interval}".rstrip()
    return f"{found} ({point.note})" if point.note else found


def numbers(chart: Chart) -> list[tuple[str, str, str, str, str]]:
    """The rows of a chart's table: series, x, y, interval, note."""
    return [
        (_name(series), *_texts(chart, point), point.note)
        for series in chart.series
        if series.kind != "ideal"
        for point in series.points
    ]


def _texts(chart: Chart, point: Point) -> tuple[str, str, str]:
    x = dict(chart.x.ticks).get(point.x, number(point.x, chart.x.form))
    y = number(point.y, chart.y.form)
    if point.low is None or point.high is None:
        return x, y, ""
    return x, y, f"[{number(point.low, chart.y.form)}, {number(point.high, chart.y.form)}]"


@dataclass(frozen=True)
class Span:
    """A bar from `start` to `end`, and the interval of its free end."""

    start: float
    end: float
    low: float | None = None
    high: float | None = None
    style: str = "bar"


@dataclass(frozen=True)
class Strip:
    """A `Span`'s place on the axis that all rows of its table share, in percent of its width.

    Attributes:
        left: where the bar begins.
        width: of the bar; 0 is a point.
        at: the free end.
        low: where the whisker begins; None without an interval.
        high: where it ends.
        rules: where vertical lines stand, in every row.
        style: a CSS class.
    """

    left: float
    width: float
    at: float
    low: float | None
    high: float | None
    rules: tuple[float, ...]
    style: str


def strips(spans: Sequence[Span], rules: Iterable[float] = (), *, log: bool = False) -> list[Strip]:
    """The bars of a table's rows, on one axis.

    Args:
        spans: one a row; what cannot be drawn makes an empty strip.
        rules: values at which a line crosses every row.
        log: whether the axis is logarithmic.
    """
    rules = tuple(rules)
    drawn = [span for span in spans if span.style != "nothing"]
    every = [v for span in drawn for v in (span.start, span.end, span.low, span.high) if v is not None]
    axis = scale.fit([*every, *rules], 0.0, 100.0, log=log)
    lines = tuple(round(axis(rule), 2) for rule in rules)
    return [_strip(span, axis, lines) for span in spans]


def _strip(span: Span, axis: Scale, rules: tuple[float, ...]) -> Strip:
    if not (scale.drawable(span.start, log=axis.log) and scale.drawable(span.end, log=axis.log)):
        return Strip(0.0, 0.0, -1.0, None, None, rules, "nothing")
    start, end = axis(span.start), axis(span.end)
    low, high = (
        None if v is None or not scale.drawable(v, log=axis.log) else round(axis(v), 2) for v in (span.low, span.high)
    )
    left, width = min(start, end), math.fabs(end - start)
    return Strip(round(left, 2), round(width, 2), round(end, 2), low, high, rules, span.style)
