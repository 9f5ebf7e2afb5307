"""Speed-up and efficiency over the world size, at which k to stop, and what an epoch costs on so many devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from suite.plan import cells as planned
from suite.plan.cells import SINGLE
from suite.records.baselines import AcceptedRun, Identity
from suite.records.record import CellRecord, Record, oversubscribed_mark
from suite.render import lead
from suite.render.document import Axis, Block, Chart, Charts, Fold, Lines, Mark, Point, Section, Series, Table, Text
from suite.render.figures import gain, interval, names, number
from suite.verdict.metrics import Interval

WORTH = 0.80  # efficiency from which a device is said to pay: the same epoch costs a quarter more than on one
MAX_WORKLOADS = 6
MAX_TRAINERS = 6
MAX_SENTENCES = 60
AXES = {
    "Speed-up": Axis("speed-up over one device", log=True, form=".2f"),
    "Efficiency": Axis("efficiency", include=(0.0, 1.0), form=".2f"),
}


def scaling(record: Record, accepted: AcceptedRun | None) -> Section:
    """Return the charts of every workload, a sentence on where to stop for each curve, and the costs of an epoch."""
    workloads = list(dict.fromkeys(cell.workload for cell in record.cells if cell.world_size > 1))
    known = stops(record)
    blocks: list[Block] = []
    drawn = 0
    for workload in workloads[:MAX_WORKLOADS]:
        charts, left_out = _workload(record, workload, accepted, known)
        if charts:
            drawn += len(charts)
            blocks.append(Charts(tuple(charts), paired=True))
        if left_out:
            blocks.append(Text(f"{left_out} more trainers are in the table of cells.", muted=True))
    if more := len(workloads[MAX_WORKLOADS:]):
        blocks.append(Text(f"{more} more workloads are in the table of cells.", muted=True))
    if drawn:
        blocks.append(Text(_legend(record, accepted), muted=True))
    if known:
        sentences = tuple(f"{stop.title}: {stop.sentence}" for stop in known)
        blocks.append(Lines(sentences[:MAX_SENTENCES], len(sentences[MAX_SENTENCES:])))
        blocks.append(Fold("What an epoch takes and costs", (_costs(known), Text(_PAYS, muted=True))))
    return Section("scaling", "Speed-up and efficiency", (*lead.told(record, "scaling"), *blocks))


_PAYS = (
    f"A device pays here while at least {WORTH:.0%} of what it costs buys work: device-seconds an epoch are k times "
    "its seconds, and 1 / E times those of one device."
)


def _legend(record: Record, accepted: AcceptedRun | None) -> str:
    text = "Whiskers are 95 % intervals over sessions; the thin line is ideal scaling."
    if record.bases:
        return f"{text} Hollow markers: {record.bases[0].label}, computed from the ratio of times in the same sessions."
    return f"{text} Hollow markers: the newest accepted run, {accepted.run_id}." if accepted else text


def _workload(
    record: Record, workload: str, accepted: AcceptedRun | None, known: Sequence[Stop]
) -> tuple[list[Chart], int]:
    """Return the charts of a workload, and how many trainers they leave out."""
    cells = [cell for cell in record.cells if cell.workload == workload]
    modes = list(dict.fromkeys(cell.mode for cell in cells if cell.world_size > 1))[:2]
    trainers = list(dict.fromkeys(cell.trainer for cell in cells))
    charts = []
    for quantity in AXES:
        for mode in modes:
            of_mode = [cell for cell in cells if cell.mode == mode]
            if series := _all_series(record, of_mode, trainers[:MAX_TRAINERS], quantity, accepted):
                marks = _marks(known, workload, mode) if quantity == "Efficiency" else ()
                charts.append(_chart(workload, mode, quantity, series, marks))
    return charts, max(0, len(trainers) - MAX_TRAINERS)


def speedups(record: Record, workload: str) -> Chart | None:
    """Return the speed-ups of a workload in all modes over the number of devices; None without several devices."""
    series, several = [], False
    modes = list(dict.fromkeys(cell.mode for cell in record.cells if cell.workload == workload and cell.world_size > 1))
    for mode in modes[:2]:
        cells = [cell for cell in record.cells if (cell.workload, cell.mode) == (workload, mode)]
        trainers = list(dict.fromkeys(cell.trainer for cell in cells))[:MAX_TRAINERS]
        for each in _all_series(record, cells, trainers, "Speed-up", None):
            several = True
            name = f"{each.name}, {mode}" if len(modes) > 1 else each.name
            series.append(Series(name, each.points))
    return _chart(workload, " and ".join(modes[:2]), "Speed-up", series[: 2 * MAX_TRAINERS]) if several else None


def _marks(known: Sequence[Stop], workload: str, mode: str) -> tuple[Mark, ...]:
    """Return a mark at the world size where each trainer stops paying."""
    stopping: dict[int, list[str]] = {}
    for stop in known:
        if (stop.workload, stop.mode) == (workload, mode) and stop.best is not None:
            stopping.setdefault(stop.best.world_size, []).append(stop.trainer)
    return tuple(Mark(k, f"k = {k} still pays: {', '.join(who)}") for k, who in sorted(stopping.items()))


def _of(cell: CellRecord, quantity: str) -> Interval | None:
    if quantity == "Speed-up":
        return gain(cell)
    return cell.efficiency if cell.world_size > 1 else Interval(estimate=1.0)


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


def _chart(workload: str, mode: str, quantity: str, series: Sequence[Series], marks: tuple[Mark, ...] = ()) -> Chart:
    sizes = sorted({point.x for one in series for point in one.points})
    ticks = tuple((size, f"{size:.0f}" if size < 1e6 else f"{size:.0e}") for size in sizes)
    ideal = tuple(Point(size, size if quantity == "Speed-up" else 1.0) for size in sizes)
    return Chart(
        title=f"{quantity}, {workload}, {mode} scaling",
        x=Axis("devices", log=True, ticks=ticks),
        y=AXES[quantity],
        series=(Series("ideal", ideal, kind="ideal"), *series),
        marks=marks,
    )


class Stop(NamedTuple):
    """At which k to stop with one trainer, workload and mode; its cells are in rising order of their world sizes.

    An epoch on k devices costs k times its seconds in device-seconds, which is 1/E_k times its cost on one device: the
    efficiency is the share of the cost that buys work.
    """

    trainer: str
    workload: str
    mode: str
    cells: list[CellRecord]

    @property
    def title(self) -> str:
        """What it is about."""
        return f"{self.trainer} {self.workload} {self.mode}"

    @property
    def best(self) -> CellRecord | None:
        """The cell of most devices whose whole efficiency interval is at least `WORTH`; None where none is."""
        paying = [cell for cell, low, _ in self._bounded if low >= WORTH]
        return paying[-1] if paying else None

    @property
    def _bounded(self) -> list[tuple[CellRecord, float, float]]:
        known = [(cell, cell.efficiency) for cell in self.cells if cell.efficiency and cell.world_size > 1]
        return [(cell, e.low, e.high) for cell, e in known if e.low is not None and e.high is not None]

    @property
    def sentence(self) -> str:
        """Where to stop, and why."""
        known = [cell for cell in self.cells if cell.efficiency and cell.world_size > 1]
        if not known:
            shared = any(cell.oversubscribed for cell in self.cells)
            why = "devices were oversubscribed" if shared else "efficiency was not measured"
            return f"Where to stop is not known: {why}."
        bounded, best = self._bounded, self.best
        if not bounded:
            why = "one session shows no interval"
            return f"Where to stop is not known, because {why}: {_each(known)}; {WORTH:.2f} or more would pay."
        if best is None:
            each = _each([cell for cell, *_ in bounded])
            if any(high >= WORTH for *_, high in bounded):
                return (
                    f"Whether more than one device pays is not known: {each}, and no whole interval is at least "
                    f"{WORTH:.2f}. More sessions narrow it."
                )
            return f"Stay with one device: {each}, the whole interval below {WORTH:.2f}."
        pays = f"the whole interval of its efficiency, {interval(best.efficiency, '.2f')}, is at least {WORTH:.2f}"
        larger = [(cell, high) for cell, _, high in bounded if cell.world_size > best.world_size]
        if not larger:
            shared = any(cell.oversubscribed and cell.world_size > best.world_size for cell in self.cells)
            largest = f"k = {best.world_size}, the largest measured{' without sharing devices' * shared}, still pays"
            return f"{largest}: {pays}.{_cost(best, self.alone_s)} More devices may pay as well."
        rest = "More devices do not pay" if all(high < WORTH for _, high in larger) else "Whether more pay is not known"
        each = _each([cell for cell, _ in larger])
        return f"Stop at k = {best.world_size}: {pays}.{_cost(best, self.alone_s)} {rest}: {each}."

    @property
    def alone_s(self) -> float | None:
        """Device-seconds an epoch on one device; None where it was not measured."""
        return device_s(self.cells[0]) if self.cells[0].world_size == 1 else None


def stops(record: Record) -> list[Stop]:
    """Return one for every trainer, workload and mode that was measured on more than one device."""
    groups: dict[tuple[str, str, str], list[CellRecord]] = {}
    for cell in record.cells:
        groups.setdefault((cell.trainer, cell.workload, cell.mode), []).append(cell)
    found, known = [], planned.names(cell.trainer for cell in record.cells)
    for (trainer, workload, mode), cells in groups.items():
        cells.sort(key=lambda cell: cell.world_size)
        if cells[-1].world_size > 1:
            found.append(Stop(known[trainer], workload, mode, cells))
    return found


def device_s(cell: CellRecord) -> float | None:
    """Return the device-seconds of an epoch, k times its seconds; None where it was not measured."""
    return None if cell.sec_per_epoch is None or cell.runs_script else cell.world_size * cell.sec_per_epoch.estimate


def _each(cells: Sequence[CellRecord]) -> str:
    return ", ".join(f"{interval(cell.efficiency, '.2f')} at k = {cell.world_size}" for cell in cells)


def _cost(best: CellRecord, alone_s: float | None) -> str:
    """Return what an epoch takes and costs; empty where it was not measured."""
    best_s = device_s(best)
    if best_s is None:
        return ""
    alone = "" if alone_s is None else f" ({number(alone_s, '.3g')} on one device)"
    seconds = interval(best.sec_per_epoch, ".3g", bounds=False)
    return f" An epoch takes {seconds} s and costs {number(best_s, '.3g')} device-seconds{alone}."


def _costs(known: Sequence[Stop]) -> Table:
    columns = ("trainer, workload, mode", "k", "efficiency", "seconds", "device-seconds", "of one device's")
    rows = [(stop, cell) for stop in known for cell in stop.cells]
    return Table.of(
        "What an epoch takes and costs", columns, (_size(*row) for row in rows), numbers=columns[1:], total=len(rows)
    )


def _size(stop: Stop, cell: CellRecord) -> tuple[str, ...]:
    cost_s, alone_s = device_s(cell), stop.alone_s
    return (
        stop.title,
        number(cell.world_size, "d") + oversubscribed_mark(cell),
        "1" if cell.world_size == 1 else interval(cell.efficiency, ".2f"),
        "-" if cell.runs_script else interval(cell.sec_per_epoch, ".3g", bounds=False),
        "-" if cost_s is None else number(cost_s, ".3g"),
        "-" if cost_s is None or not alone_s else number(cost_s / alone_s, ".2f"),
    )
