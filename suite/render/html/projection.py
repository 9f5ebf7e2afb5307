"""The section on more devices than were measured: one chart, and what it assumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from suite.communication.projection import ASSUMPTIONS, Projection, project
from suite.records.record import Record
from suite.render import figures
from suite.render.html.chart import MAX_SERIES, Axis, Chart, Point, Series, figure
from suite.render.html.environment import bounded


def projected(record: Record) -> Mapping[str, object] | None:
    """Return the chart, its assumptions and what has no projection; None where no all_reduce was swept."""
    if not record.collectives or not (projections := project(record)):
        return None
    known, names = [each for each in projections if each.points], figures.names(record)
    series = [line for each in known[:MAX_SERIES] for line in _lines(record, each, figures.name(each.cell, names))]
    sizes = sorted({point.x for line in series for point in line.points})
    x = Axis("devices", log=True, ticks=tuple((k, f"{k:.0f}") for k in sizes))
    y = Axis("efficiency", include=(0.0, 1.0), form=".2f")
    without = [(figures.name(each.cell, names), each.reason) for each in projections if each.reason]
    return {
        "chart": figure(Chart("Efficiency, measured and projected", x, y, tuple(series))) if series else None,
        "assumptions": ASSUMPTIONS,
        "left_out": len(known[MAX_SERIES:]),
        "without": bounded(without, len(without)),
    }


def _lines(record: Record, projection: Projection, name: str) -> Iterator[Series]:
    place = projection.cell.place[:3]
    cells = [cell for cell in record.cells if cell.place[:3] == place and cell.world_size > 1 and cell.efficiency]
    yield Series(name, tuple(Point.of(cell.world_size, cell.efficiency) for cell in cells if cell.efficiency))
    notes = (f"{1e3 * at.step_s:.3g} ms a step, {1e3 * at.exchange_s:.3g} of them exchange" for at in projection.points)
    ahead = (Point(at.world_size, at.efficiency, note=note) for at, note in zip(projection.points, notes, strict=True))
    yield Series(f"{name}, projected", tuple(ahead), kind="base", like=name)
