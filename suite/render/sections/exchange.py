"""What exchanging gradients can cost: sweeps of collectives, the line through each, and what more devices would do.

The projection starts at the largest world size m that was measured. With t_1 the step of one device on the whole batch,

    step(k) = t_1 / k + small (1 - 1 / k) / (1 - 1 / m) + grows m / k + stays + exchange + T(k) - T(m),

where every name is a bar of the waterfall at m (`PROPORTIONAL` grows with the work on a device) and T is a ring's
all_reduce with the fitted alpha and beta: 2 (k - 1) messages of a k-th of the gradients. In weak scaling the first
terms do not change with k. A process that drives all devices repeats its overhead and exchange for each further one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from suite.plan import cells as planned
from suite.plan.cells import Cell
from suite.records.record import (
    ArmRecord,
    CellRecord,
    CollectivePoint,
    CollectiveRecord,
    Record,
    WaterfallRecord,
    oversubscribed_mark,
)
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
from suite.verdict.metrics import Interval

WORLD_SIZES = (4, 8, 16, 32, 64)  # the documents' three, and beyond
BACKENDS = ("nccl", "gloo")  # what the processes of a trainer talk through
PROPORTIONAL = frozenset(("contention", "imbalance", "feed"))
ASSUMPTIONS = (
    "A projection, not a measurement: it assumes that further devices and links are like the measured ones, that "
    "contention, imbalance and the feed grow with the work on a device, that one ring all_reduce a step follows the "
    "line of this run's sweep and as much of it stays hidden, that a process which drives all devices repeats its "
    "overhead and exchange for each further one, and that nothing else changes."
)
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


class Projected(NamedTuple):
    """What to expect of `world_size` devices; the exchange is the part of the step that nothing hides."""

    world_size: int
    step_s: float
    exchange_s: float
    efficiency: float


class Projection(NamedTuple):
    """What is projected from a cell, the largest of its kind that allows it, or why nothing is."""

    cell: CellRecord
    points: tuple[Projected, ...] = ()
    reason: str = ""


def project(record: Record, world_sizes: Sequence[int] = WORLD_SIZES) -> tuple[Projection, ...]:
    """Return a projection for each trainer, workload and mode on several devices, up to one sample a device."""
    arms = {arm.id: arm for arm in record.arms}
    swept = (each for each in record.collectives if each.collective == "all_reduce" and each.algorithm in BACKENDS)
    sweeps = {each.world_size: each for each in swept}
    found: dict[tuple[str, str, str], Projection] = {}
    for cell in sorted(record.cells, key=lambda cell: cell.world_size, reverse=True):
        place = cell.trainer, cell.workload, cell.mode
        known = found.get(place)
        if cell.world_size > 1 and (known is None or known.reason):
            arm = arms.get(planned.arm("candidate", cell.trainer, Cell(*cell.place)).id)
            try:
                found[place] = Projection(cell, _projected_points(cell, arm, sweeps.get(cell.world_size), world_sizes))
            except ValueError as error:
                found[place] = known or Projection(cell, reason=str(error))
    return tuple(found.values())


def _projected_points(
    cell: CellRecord, arm: ArmRecord | None, sweep: CollectiveRecord | None, world_sizes: Sequence[int]
) -> tuple[Projected, ...]:
    """Return what to expect at the world sizes beyond the cell's own; a ValueError says what is missing for it."""
    waterfall, ring_s = cell.own_waterfall, None
    if arm is None or waterfall is None:
        raise ValueError(f"no waterfall: {cell.why('waterfall') or 'its step was not taken apart'}")
    if arm.processes != "one":
        if not arm.gradient_bytes:
            raise ValueError("how many bytes of gradients it exchanges is not known; measure it again")
        if sweep is None or sweep.alpha_s is None or sweep.beta_s_per_byte is None:
            why = sweep.error if sweep else "select the items of test_all_reduce as well"
            raise ValueError(f"no all_reduce was swept on {cell.world_size} devices: {why}")
        ring_s = sweep.alpha_s.estimate, sweep.beta_s_per_byte.estimate * arm.gradient_bytes
    most = arm.global_batch if cell.mode == "strong" else math.inf
    return tuple(_project(cell, waterfall, ring_s, k) for k in world_sizes if cell.world_size < k <= most)


def _project(cell: CellRecord, waterfall: WaterfallRecord, ring_s: tuple[float, float] | None, k: int) -> Projected:
    """Evaluate the formula above at k devices.

    `ring_s` is alpha, and beta times the gradients' bytes; None where one process drives all devices.
    """
    m = cell.world_size
    share = m / k if cell.mode == "strong" else 1.0  # of the work on a device
    step_s = ideal_s = waterfall.ideal_s.estimate * share
    exchange_s, further = 0.0, (k - 1) / (m - 1)
    for bar in waterfall.bars:
        causes, seconds = set(bar.causes), bar.step_s.estimate
        if "exchange" in causes or (ring_s is None and "overhead" in causes):
            exchange_s += seconds
        elif causes == {"small batch"}:
            step_s += seconds * (1 - 1 / k) / (1 - 1 / m)
        else:
            step_s += seconds * (share if causes <= PROPORTIONAL else 1.0)
    if ring_s is None:
        exchange_s *= further
    else:
        exchange_s += ring_s[0] * (further - 1) + ring_s[1] * (further * m / k - 1)
    exchange_s = max(0.0, exchange_s)
    step_s += exchange_s
    if not (step_s > 0 and ideal_s > 0 and math.isfinite(ideal_s / step_s)):  # a record may hold any number
        raise ValueError("the record's figures are no times that a step could have; measure it again")
    return Projected(k, step_s, exchange_s, ideal_s / step_s)
