"""Speed-up and efficiency over the world size, and what an epoch costs on so many devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.plan.cells import SINGLE
from suite.records.baselines import AcceptedRun, Identity
from suite.records.record import CellRecord, IntervalRecord, Record, oversubscribed_mark
from suite.render.figures import interval, names, number
from suite.render.html.chart import Axis, Chart, Point, Series, figure
from suite.render.html.environment import bounded
from suite.render.stopping import WORTH, Stop, device_s, stops

MAX_WORKLOADS = 6
MAX_TRAINERS = 6
MAX_SENTENCES = 60
AXES = {
    "Speed-up": Axis("speed-up over one device", log=True, form=".2f"),
    "Efficiency": Axis("efficiency", include=(0.0, 1.0), form=".2f"),
}


def curves(record: Record, accepted: AcceptedRun | None) -> Mapping[str, object] | None:
    """Return the charts of every workload; None where nothing was measured on several devices."""
    names = list(dict.fromkeys(cell.workload for cell in record.cells if cell.world_size > 1))
    workloads = [_workload(record, name, accepted) for name in names[:MAX_WORKLOADS]]
    if not any(charts for _, charts, _ in workloads):
        return None
    return {"workloads": workloads, "left_out": len(names[MAX_WORKLOADS:]), "bases": record.bases, "accepted": accepted}


def _workload(record: Record, workload: str, accepted: AcceptedRun | None) -> tuple[str, list[str], int]:
    """Return a workload's name, its charts, and how many trainers they leave out."""
    cells = [cell for cell in record.cells if cell.workload == workload]
    modes = list(dict.fromkeys(cell.mode for cell in cells if cell.world_size > 1))[:2]
    trainers = list(dict.fromkeys(cell.trainer for cell in cells))
    charts: list[str] = []
    for quantity in AXES:
        for mode in modes:
            of_mode = [cell for cell in cells if cell.mode == mode]
            if series := _all_series(record, of_mode, trainers[:MAX_TRAINERS], quantity, accepted):
                charts.append(figure(_chart(workload, mode, quantity, series)))
    return workload, charts, max(0, len(trainers) - MAX_TRAINERS)


def _of(cell: CellRecord, quantity: str) -> IntervalRecord | None:
    if quantity == "Speed-up":
        return cell.speedup
    return cell.efficiency if cell.world_size > 1 else IntervalRecord(estimate=1.0)


def _all_series(
    record: Record, cells: Sequence[CellRecord], trainers: Sequence[str], quantity: str, accepted: AcceptedRun | None
) -> list[Series]:
    drawn, known = [], names(record)
    for trainer in trainers:
        own = sorted((cell for cell in cells if cell.trainer == trainer), key=lambda cell: cell.world_size)
        values = [(cell.world_size, value) for cell in own if (value := _of(cell, quantity)) is not None]
        if not any(world_size > 1 for world_size, _ in values):
            continue
        shared = [str(cell.world_size) for cell in own if cell.oversubscribed]
        name = known[trainer] + (f" (oversubscribed at k = {', '.join(shared)})" if shared else "")
        drawn.append(Series(name, tuple(Point.of(k, value) for k, value in values)))
        base = _base(own, quantity) if record.bases else _accepted(record, own, quantity, accepted)
        if any(point.x > 1 for point in base):
            drawn.append(Series(f"{name}, base", tuple(base), kind="base", like=name))
    return drawn


def _base(cells: Sequence[CellRecord], quantity: str) -> list[Point]:
    """Return the curve of a base from r = t_candidate / t_base: its speed-up is s r, its efficiency E_k r_k / r_1."""
    ratios = {cell.world_size: cell.slowdown.estimate for cell in cells if cell.slowdown is not None}
    one = 1.0 if quantity == "Speed-up" else ratios.get(1)
    if not one:
        return []
    return [
        Point(cell.world_size, value.estimate * ratios[cell.world_size] / one)
        for cell in cells
        if (value := _of(cell, quantity)) is not None and cell.world_size in ratios
    ]


def _accepted(record: Record, cells: Sequence[CellRecord], quantity: str, accepted: AcceptedRun | None) -> list[Point]:
    """Return the curve of an accepted run: its speed-up is t_single / t_k, its efficiency t_1 / (k t_k)."""
    if accepted is None or not cells or cells[0].workload not in record.workload_hashes:
        return []
    identities = [Identity.of(cell, record) for cell in cells]
    reference = SINGLE if quantity == "Speed-up" else cells[0].trainer
    one = accepted.find(identities[0]._replace(trainer=reference, mode="strong", world_size=1))
    points = []
    for identity in identities:
        kept, k = accepted.find(identity), identity.world_size
        if one is not None and kept is not None and k > 0:
            ratio = one.sec_per_epoch / kept.sec_per_epoch
            points.append(Point(k, ratio if quantity == "Speed-up" else ratio / k))
    return points


def _chart(workload: str, mode: str, quantity: str, series: Sequence[Series]) -> Chart:
    sizes = sorted({point.x for one in series for point in one.points})
    ticks = tuple((size, f"{size:.0f}" if size < 1e6 else f"{size:.0e}") for size in sizes)
    ideal = tuple(Point(size, size if quantity == "Speed-up" else 1.0) for size in sizes)
    return Chart(
        title=f"{quantity}, {workload}, {mode} scaling",
        x=Axis("devices", log=True, ticks=ticks),
        y=AXES[quantity],
        series=(Series("ideal", ideal, kind="ideal"), *series),
    )


def costs(record: Record) -> Mapping[str, object] | None:
    """Return at which k to stop, and what an epoch costs at every k; None where k was 1 alone."""
    known = stops(record)
    if not known:
        return None
    rows = [(stop, cell) for stop in known for cell in stop.cells]
    return {
        "sentences": known[:MAX_SENTENCES],
        "left_out": max(0, len(known) - MAX_SENTENCES),
        "sizes": bounded((_size(*row) for row in rows), len(rows)),
        "worth": f"{WORTH:.0%}",
    }


def _size(stop: Stop, cell: CellRecord) -> tuple[str, ...]:
    cost_s, alone_s = device_s(cell), stop.alone_s
    return (
        stop.title,
        number(cell.world_size, "d") + oversubscribed_mark(cell),
        "1" if cell.world_size == 1 else interval(cell.efficiency, ".2f"),
        interval(cell.sec_per_epoch, ".3g", bounds=False),
        "-" if cost_s is None else number(cost_s, ".3g"),
        "-" if cost_s is None or not alone_s else number(cost_s / alone_s, ".2f"),
    )
