"""Speed-up and efficiency over the world size, strong and weak side by side, against the ideal and a base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from suite.plan.cells import YARDSTICK, short
from suite.records.baselines import AcceptedRun, Baseline, Identity
from suite.records.record import CellRecord, IntervalRecord, Record
from suite.render.figures import as_float
from suite.render.html.accepting import newest
from suite.render.html.chart import Axis, Chart, Point, Series, figure

MAX_WORKLOADS = 6
MAX_TRAINERS = 6
MAX_TICKS = 10


@dataclass(frozen=True)
class Quantity:
    """One kind of curve.

    Attributes:
        own: whether it is relative to the trainer's own single device, and a share of the ideal; otherwise it is a
            multiple of the plain trainer's speed.
        of: reads it from a cell.
        ideal: its ideal at a world size.
    """

    name: str
    axis: Axis
    own: bool
    of: Callable[[CellRecord], IntervalRecord | None]
    ideal: Callable[[float], float]


@dataclass(frozen=True)
class Curves:
    """The charts of one workload, in reading order."""

    workload: str
    charts: tuple[Markup, ...]
    left_out: int  # trainers


@dataclass(frozen=True)
class View:
    """What the template shows."""

    curves: tuple[Curves, ...]
    left_out: int  # workloads
    base: str


_ONE = IntervalRecord(estimate=1.0)
QUANTITIES = (
    Quantity(
        "Speed-up",
        Axis("speed-up over one device", log=True, form=".2f"),
        False,
        lambda cell: cell.speedup,
        lambda world_size: world_size,
    ),
    Quantity(
        "Efficiency",
        Axis("efficiency", include=(0.0, 1.0), form=".2f"),
        True,
        lambda cell: cell.efficiency if cell.world_size > 1 else _ONE,
        lambda world_size: 1.0,
    ),
)


def view(record: Record, baseline: Baseline | None) -> View | None:
    """The curves of every workload; None where nothing was measured on several devices."""
    names = list(dict.fromkeys(cell.workload for cell in record.cells if cell.world_size > 1))
    accepted = newest(record, baseline)
    curves = tuple(_curves(record, name, accepted) for name in names[:MAX_WORKLOADS])
    if not any(found.charts for found in curves):
        return None
    base = ""
    if record.bases:
        base = f"Hollow markers: {record.bases[0].label}, reckoned from the ratio of times in the same sessions."
    elif accepted is not None:
        base = f"Hollow markers: the newest accepted run, {accepted.run_id}."
    return View(curves, max(0, len(names) - MAX_WORKLOADS), base)


def _curves(record: Record, workload: str, accepted: AcceptedRun | None) -> Curves:
    cells = [cell for cell in record.cells if cell.workload == workload]
    modes = list(dict.fromkeys(cell.mode for cell in cells if cell.world_size > 1))[:2]
    trainers = list(dict.fromkeys(cell.trainer for cell in cells))
    charts = []
    for quantity in QUANTITIES:
        for mode in modes:
            of_mode = [cell for cell in cells if cell.mode == mode]
            series = _all_series(record, of_mode, trainers[:MAX_TRAINERS], quantity, accepted)
            if series:
                charts.append(figure(_chart(workload, mode, quantity, series)))
    return Curves(workload, tuple(charts), max(0, len(trainers) - MAX_TRAINERS))


def _all_series(
    record: Record,
    cells: Sequence[CellRecord],
    trainers: Sequence[str],
    quantity: Quantity,
    accepted: AcceptedRun | None,
) -> list[Series]:
    found, shorts = [], [short(trainer) for trainer in trainers]
    for trainer in trainers:
        own = sorted((cell for cell in cells if cell.trainer == trainer), key=lambda cell: cell.world_size)
        points = [_point(cell.world_size, value) for cell in own if (value := quantity.of(cell)) is not None]
        if not any(point.x > 1 for point in points):
            continue
        name = trainer if shorts.count(short(trainer)) > 1 else short(trainer)
        found.append(Series(name, tuple(points)))
        before = _beside(own, quantity) if record.bases else _before(record, own, quantity, accepted)
        if any(point.x > 1 for point in before):
            found.append(Series(f"{name}, base", tuple(before), kind="base", like=name))
    return found


def _point(world_size: int, value: IntervalRecord) -> Point:
    return Point(as_float(world_size), value.estimate, value.low, value.high)


def _beside(cells: Sequence[CellRecord], quantity: Quantity) -> list[Point]:
    """The base's, from the paired ratio r = t_candidate / t_base: s r is its speed-up, E_k r_k / r_1 its efficiency."""
    ratios = {cell.world_size: cell.slowdown.estimate for cell in cells if cell.slowdown is not None}
    one = ratios.get(1) if quantity.own else 1.0
    if not one:
        return []
    return [
        Point(as_float(cell.world_size), value.estimate * ratios[cell.world_size] / one)
        for cell in cells
        if (value := quantity.of(cell)) is not None and cell.world_size in ratios
    ]


def _before(
    record: Record, cells: Sequence[CellRecord], quantity: Quantity, accepted: AcceptedRun | None
) -> list[Point]:
    """An accepted run's, from its seconds an epoch: t_single / t_k is its speed-up, t_1 / (k t_k) its efficiency."""
    if accepted is None or not cells or cells[0].workload not in record.workload_hashes:
        return []
    identities = [Identity.of(cell, record) for cell in cells]
    yardstick = cells[0].trainer if quantity.own else YARDSTICK
    one = accepted.find(identities[0]._replace(trainer=yardstick, mode="strong", world_size=1))
    if one is None:
        return []
    points = []
    for identity in identities:
        kept = accepted.find(identity)
        k = as_float(identity.world_size)
        if kept is not None and kept.sec_per_epoch > 0 and k > 0:
            ratio = one.sec_per_epoch / kept.sec_per_epoch
            points.append(Point(k, ratio / k if quantity.own else ratio))
    return points


def _chart(workload: str, mode: str, quantity: Quantity, series: Sequence[Series]) -> Chart:
    sizes = sorted({point.x for found in series for point in found.points})
    ticks = tuple((size, f"{size:.0f}" if size < 1e6 else f"{size:.0e}") for size in sizes)
    ideal = Series("ideal", tuple(Point(size, quantity.ideal(size)) for size in sizes), kind="ideal")
    return Chart(
        title=f"{quantity.name}, {workload}, {mode} scaling",
        x=Axis("devices", log=True, ticks=ticks if len(ticks) <= MAX_TICKS else ()),
        y=quantity.axis,
        series=(ideal, *series),
    )
