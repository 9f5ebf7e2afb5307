"""What exchanging gradients can cost: sweeps of collectives, the line through each, and what more devices would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from suite.records.record import CollectivePoint, CollectiveRecord, Record, oversubscribed_mark
from suite.render import commands, figures, lead
from suite.render.document import (
    MAX_SERIES,
    Axis,
    Block,
    Chart,
    Charts,
    Command,
    Fold,
    Lines,
    Point,
    Section,
    Series,
    Table,
    Text,
    Value,
)
from suite.render.figures import interval, number, size
from suite.render.projection import ASSUMPTIONS, Projection, project
from suite.verdict.metrics import Interval

MAX_CHARTS = 6
MAX_TICKS = 5
MAX_LINES = 60
FITS = ("algorithm", "k", "alpha, µs", "beta, s per GB", "1 / beta, GB/s")
POINTS = ("algorithm", "k", "message", "time, µs", "line, µs", "algbw, GB/s", "busbw, GB/s")


def exchange(record: Record) -> Section:
    """Return charts by collective and world size, fits, points, what failed, and a projection to more devices."""
    sweeps = record.collectives
    measured = [sweep for sweep in sweeps if sweep.points]
    kinds = sorted({(sweep.collective, sweep.world_size) for sweep in measured})[:MAX_CHARTS]
    fitted = [sweep for sweep in sweeps if sweep.alpha_s is not None or sweep.beta_s_per_byte is not None]
    points = [(sweep, point) for sweep in measured for point in sweep.points]
    blocks = lead.told(record, "exchange")
    if kinds:
        each = ([sweep for sweep in measured if (sweep.collective, sweep.world_size) == kind] for kind in kinds)
        blocks.append(Charts(tuple(_chart(of_kind) for of_kind in each)))
    if fitted:
        caption = "Time as alpha + beta · bytes"
        blocks.append(Table.of(caption, FITS, map(_fit, fitted), numbers=FITS[1:], total=len(fitted)))
        blocks.append(Text(_LINE, muted=True))
    if failed := [_failed(record, sweep) for sweep in sweeps if sweep.error]:
        columns = ("collective", "why", "see it again")
        blocks.append(Table.of("What could not be measured", columns, failed))
    if points:
        rows = (_point(*pair) for pair in points)
        table = Table.of("Every message size", POINTS, rows, numbers=POINTS[1:], total=len(points))
        blocks.append(Fold("Every message size", (table,)))
    if sweeps:
        blocks += _projected(record)
    return Section("exchange", "Exchange", tuple(blocks))


_LINE = (
    "Alpha is what a call costs however small the message, beta what each byte adds. A straight line misses single "
    "sizes by up to a factor of two."
)


def _failed(record: Record, sweep: CollectiveRecord) -> tuple[Value, ...]:
    name = f"{sweep.collective}, {sweep.algorithm}, k = {sweep.world_size}{oversubscribed_mark(sweep)}"
    return name, sweep.error, Command(commands.collective(record, sweep))


def _chart(sweeps: Sequence[CollectiveRecord]) -> Chart:
    first, shown = sweeps[0], sweeps[:MAX_SERIES]
    sizes = sorted({point.size_bytes for sweep in shown for point in sweep.points})
    named = sizes[:: -(-len(sizes) // MAX_TICKS)]
    return Chart(
        title=f"Bus bandwidth of {first.collective}, k = {number(first.world_size, 'd')}{oversubscribed_mark(first)}",
        x=Axis("message", log=True, ticks=tuple((count, size(count)) for count in named), form=".3g"),
        y=Axis("busbw, GB/s", log=True, form=".3g"),
        series=tuple(
            Series(sweep.algorithm, tuple(Point(p.size_bytes, p.busbw_gb_per_s) for p in sweep.points))
            for sweep in shown
        ),
        description="Bus bandwidth over message size: what a link would have to carry, whatever the world size.",
    )


def _name(sweep: CollectiveRecord) -> str:
    which = "" if sweep.collective == "all_reduce" else f", {sweep.collective}"
    return f"{sweep.algorithm}{which}{oversubscribed_mark(sweep)}"


def _fit(sweep: CollectiveRecord) -> tuple[str, ...]:
    """Return alpha in microseconds, beta in seconds per GB, and its inverse in GB/s, whose bounds change places."""
    beta, rate = sweep.beta_s_per_byte, None
    if beta is not None and beta.estimate > 0:
        bounds = [1 / bound for bound in (beta.high, beta.low) if bound is not None and bound > 0]
        rate = Interval(1 / beta.estimate, *(bounds if len(bounds) == 2 else ()))
    return (
        _name(sweep),
        number(sweep.world_size, "d"),
        interval(sweep.alpha_s, ".1f", factor=1e6),
        interval(beta, ".3g", factor=1e9),
        interval(rate, ".3g", factor=1e-9),
    )


def _point(sweep: CollectiveRecord, point: CollectivePoint) -> tuple[str, ...]:
    expected = "-"
    if sweep.alpha_s is not None and sweep.beta_s_per_byte is not None:
        line_s = sweep.alpha_s.estimate + sweep.beta_s_per_byte.estimate * point.size_bytes
        expected = number(line_s * 1e6, ".1f")
    return (
        _name(sweep),
        number(sweep.world_size, "d"),
        size(point.size_bytes),
        interval(point.time_s, ".1f", factor=1e6),
        expected,
        number(point.algbw_gb_per_s, ".3g"),
        number(point.busbw_gb_per_s, ".3g"),
    )


def _projected(record: Record) -> list[Block]:
    """Return what to expect of more devices than were measured: one chart, and what it assumes."""
    projections = project(record)
    if not projections:
        return []
    known, names = [each for each in projections if each.points], figures.names(record)
    series = [line for each in known[:MAX_SERIES] for line in _lines(record, each, figures.name(each.cell, names))]
    sizes = sorted({point.x for line in series for point in line.points})
    x = Axis("devices", log=True, ticks=tuple((k, f"{k:.0f}") for k in sizes))
    y = Axis("efficiency", include=(0.0, 1.0), form=".2f")
    blocks: list[Block] = [Text(ASSUMPTIONS, muted=True)]
    if series:
        blocks.append(Charts((Chart("Efficiency, measured and projected", x, y, tuple(series)),)))
    if more := len(known[MAX_SERIES:]):
        blocks.append(Text(f"{more} more are not in the chart.", muted=True))
    if without := [f"{figures.name(each.cell, names)}: {each.reason}" for each in projections if each.reason]:
        blocks.append(Fold("Without a projection", (Lines(tuple(without[:MAX_LINES]), len(without[MAX_LINES:])),)))
    return [Fold("What to expect of more devices", tuple(blocks))]


def _lines(record: Record, projection: Projection, name: str) -> Iterator[Series]:
    place = projection.cell.place[:3]
    cells = [cell for cell in record.cells if cell.place[:3] == place and cell.world_size > 1 and cell.efficiency]
    yield Series(name, tuple(Point.of(cell.world_size, cell.efficiency) for cell in cells if cell.efficiency))
    notes = (f"{1e3 * at.step_s:.3g} ms a step, {1e3 * at.exchange_s:.3g} of them exchange" for at in projection.points)
    ahead = (Point(at.world_size, at.efficiency, note=note) for at, note in zip(projection.points, notes, strict=True))
    yield Series(f"{name}, projected", tuple(ahead), kind="base", like=name)
