"""What is to be expected of more devices than were measured: a projection, with its error bars and its assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from suite.communication.projection import Projection, project
from suite.communication.scaling_model import Expectation
from suite.plan.cells import short
from suite.records.baselines import Baseline
from suite.records.record import Record
from suite.render.figures import as_float, number
from suite.render.html.bounds import Rows, bounded
from suite.render.html.chart import Axis, Chart, Point, Series, figure
from suite.verdict.metrics import Interval

MAX_CHARTS = 12


@dataclass(frozen=True)
class Projected:
    """One trainer, workload and mode: a picture, and what it takes for granted."""

    title: str
    picture: Markup
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """What the template shows; `without` are those of which nothing can be said, and why."""

    shown: tuple[Projected, ...]
    left_out: int
    rows: Rows[tuple[str, ...]]
    without: Rows[tuple[str, str]]


def view(record: Record, baseline: Baseline | None) -> View | None:
    """None where no all_reduce was swept: then there is nothing to reckon with, and nobody asked."""
    if not record.collectives:
        return None
    found = project(record)
    known = [projection for projection in found if not projection.reason]
    points = [(projection, point) for projection in known for point in (*projection.expected, *projection.projected)]
    without = [(_title(projection), projection.reason) for projection in found if projection.reason]
    if not found:
        return None
    return View(
        shown=tuple(
            Projected(_title(projection), figure(_chart(projection)), projection.assumptions)
            for projection in known[:MAX_CHARTS]
        ),
        left_out=max(0, len(known) - MAX_CHARTS),
        rows=bounded((_row(*pair) for pair in points), len(points)),
        without=bounded(without, len(without)),
    )


def _title(projection: Projection) -> str:
    return f"{short(projection.trainer)} {projection.workload} {projection.mode}"


def _chart(projection: Projection) -> Chart:
    measured = [
        Point(as_float(point.world_size), at.estimate, at.low, at.high)
        for point in projection.expected
        if (at := point.measured) is not None
    ]
    curves = {
        "measured": measured,
        "expected there": _points(projection.expected),
        "projected": _points(projection.projected),
    }
    sizes = sorted({point.x for points in curves.values() for point in points})
    ideal = Series("ideal", tuple(Point(size, 1.0) for size in sizes), kind="ideal")
    return Chart(
        title=f"{_title(projection)}: a projection",
        x=Axis("devices", log=True, ticks=tuple((size, f"{size:.0f}") for size in sizes) if len(sizes) < 9 else ()),
        y=Axis("efficiency", include=(0.0, 1.0), form=".2f"),
        series=(ideal, *(Series(name, tuple(points)) for name, points in curves.items() if points)),
        interval="error bar",
    )


def _points(expectations: Sequence[Expectation]) -> list[Point]:
    return [
        Point(as_float(point.world_size), point.efficiency.estimate, point.efficiency.low, point.efficiency.high)
        for point in expectations
    ]


def _row(projection: Projection, point: Expectation) -> tuple[str, ...]:
    return (
        _title(projection),
        number(point.world_size, "d"),
        "projected" if point in projection.projected else "measured too",
        number(point.batch, "d"),
        _text(point.exchange_s, ".2f", 1e3),
        _text(point.step_s, ".2f", 1e3),
        _text(point.efficiency, ".2f"),
        "-" if point.measured is None else _text(point.measured, ".2f"),
    )


def _text(found: Interval, form: str, factor: float = 1.0) -> str:
    text = number(found.estimate * factor, form)
    if found.low is None or found.high is None:
        return text
    return f"{text} [{number(found.low * factor, form)}, {number(found.high * factor, form)}]"
