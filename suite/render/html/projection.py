"""What to expect of more devices than were measured: a projection, with its assumptions."""

from __future__ import annotations

from collections.abc import Mapping

from suite.communication.projection import Expectation, Projection, project
from suite.records.record import Record
from suite.render.figures import interval, names, number
from suite.render.html.chart import Axis, Chart, Point, Series, figure
from suite.render.html.environment import bounded

MAX_CHARTS = 12


def projected(record: Record) -> Mapping[str, object] | None:
    """Return a chart and the assumptions of every projection; None where no all_reduce was swept."""
    projections = project(record) if record.collectives else ()
    if not projections:
        return None
    trainers = names(record)
    known = [projection for projection in projections if not projection.reason]
    points = [(projection, point) for projection in known for point in (*projection.expected, *projection.projected)]
    without = [(_title(projection, trainers), projection.reason) for projection in projections if projection.reason]
    return {
        "shown": [
            (_title(projection, trainers), figure(_chart(projection, trainers)), projection.assumptions)
            for projection in known[:MAX_CHARTS]
        ],
        "left_out": max(0, len(known) - MAX_CHARTS),
        "rows": bounded((_row(*pair, trainers) for pair in points), len(points)),
        "without": bounded(without, len(without)),
    }


def _title(projection: Projection, trainers: Mapping[str, str]) -> str:
    return f"{trainers[projection.trainer]} {projection.workload} {projection.mode}"


def _chart(projection: Projection, trainers: Mapping[str, str]) -> Chart:
    curves = {
        "measured": [Point.of(at.world_size, at.measured) for at in projection.expected if at.measured is not None],
        "expected there": [Point(at.world_size, at.efficiency) for at in projection.expected],
        "projected": [Point(at.world_size, at.efficiency) for at in projection.projected],
    }
    sizes = sorted({point.x for points in curves.values() for point in points})
    ideal = Series("ideal", tuple(Point(size, 1.0) for size in sizes), kind="ideal")
    return Chart(
        title=f"{_title(projection, trainers)}: a projection",
        x=Axis("devices", log=True, ticks=tuple((k, f"{k:.0f}") for k in sizes)),
        y=Axis("efficiency", include=(0.0, 1.0), form=".2f"),
        series=(ideal, *(Series(name, tuple(points)) for name, points in curves.items() if points)),
    )


def _row(projection: Projection, point: Expectation, trainers: Mapping[str, str]) -> tuple[str, ...]:
    return (
        _title(projection, trainers),
        number(point.world_size, "d"),
        "projected" if point in projection.projected else "measured too",
        number(point.batch, "d"),
        interval(point.exchange_s, ".2f", factor=1e3),
        number(point.step_s * 1e3, ".2f"),
        number(point.efficiency, ".2f"),
        interval(point.measured, ".2f"),
    )
