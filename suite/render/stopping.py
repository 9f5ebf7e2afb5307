"""At which k to stop: how far more devices still pay, as a sentence for every trainer, workload and mode. Pure.

Devices cost by the second. An epoch on k of them costs k times its seconds, which is 1/E_k times what it costs on one:
efficiency is the share of the money that buys work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suite.plan.cells import short
from suite.records.record import CellRecord, IntervalRecord, Record
from suite.render.figures import as_float, interval, number

WORTH = 0.80  # efficiency from which a device is said to pay: the same epoch costs a quarter more than on one


@dataclass(frozen=True)
class Size:
    """What an epoch takes and costs at one world size.

    Attributes:
        sec_per_epoch: seconds; None where it was not measured.
        device_s: device-seconds an epoch, k times as many.
        efficiency: None at world size 1, where it is 1, and where it was not measured.
    """

    world_size: int
    sec_per_epoch: float | None
    device_s: float | None
    efficiency: IntervalRecord | None


@dataclass(frozen=True)
class Stop:
    """The world sizes of one trainer, workload and mode, in rising order, and what follows from them."""

    trainer: str
    workload: str
    mode: str
    sizes: tuple[Size, ...]
    sentence: str

    @property
    def title(self) -> str:
        """As it is shown."""
        return f"{short(self.trainer)} {self.workload} {self.mode}"


def stops(record: Record) -> list[Stop]:
    """One for every trainer, workload and mode that was measured on more than one device."""
    groups: dict[tuple[str, str, str], list[CellRecord]] = {}
    for cell in record.cells:
        groups.setdefault((cell.trainer, cell.workload, cell.mode), []).append(cell)
    found = []
    for key, cells in groups.items():
        sizes = tuple(_size(cell) for cell in sorted(cells, key=lambda cell: cell.world_size))
        if any(size.world_size > 1 for size in sizes):
            found.append(Stop(*key, sizes, _sentence(sizes)))
    return found


def _size(cell: CellRecord) -> Size:
    seconds = cell.sec_per_epoch.estimate if cell.sec_per_epoch else None
    device_s = None if seconds is None else as_float(cell.world_size) * seconds
    return Size(cell.world_size, seconds, device_s, cell.efficiency if cell.world_size > 1 else None)


def _sentence(sizes: Sequence[Size]) -> str:
    known = [size for size in sizes if size.efficiency is not None]
    bounded = [size for size in known if size.efficiency and size.efficiency.low is not None]
    if not known:
        return "Where to stop cannot be said: efficiency was not measured."
    if not bounded:
        return (
            f"Where to stop cannot be said from a single session, which shows no interval: {_each(known)}; "
            f"{WORTH:.2f} or more would pay."
        )
    worth = [size for size in bounded if _low(size) >= WORTH]
    if not worth:
        return _nowhere(bounded)
    best = worth[-1]
    pays = f"the whole interval of its efficiency, {interval(best.efficiency, '.2f')}, is at least {WORTH:.2f}"
    larger = [size for size in bounded if size.world_size > best.world_size]
    if not larger:
        largest = f"k = {best.world_size}, the largest measured, still pays"
        return f"{largest}: {pays}.{_cost(best, sizes)} More may pay as well."
    rest = "Beyond it does not" if all(_high(size) < WORTH for size in larger) else "Whether more pays is not shown"
    return f"Stop at k = {best.world_size}: {pays}.{_cost(best, sizes)} {rest}: {_each(larger)}."


def _nowhere(bounded: Sequence[Size]) -> str:
    if any(_high(size) >= WORTH for size in bounded):
        return (
            f"That more than one device pays is not shown: {_each(bounded)}, and no whole interval is at least "
            f"{WORTH:.2f}. More sessions narrow it."
        )
    return f"Stay with one device: {_each(bounded)}, below {WORTH:.2f} with the whole interval."


def _each(sizes: Sequence[Size]) -> str:
    return ", ".join(f"{interval(size.efficiency, '.2f')} at k = {size.world_size}" for size in sizes)


def _cost(best: Size, sizes: Sequence[Size]) -> str:
    if best.sec_per_epoch is None or best.device_s is None:
        return ""
    text = (
        f" An epoch takes {number(best.sec_per_epoch, '.3g')} s and costs {number(best.device_s, '.3g')} device-seconds"
    )
    alone = next((size.device_s for size in sizes if size.world_size == 1), None)
    return text + (f" ({number(alone, '.3g')} on one device)." if alone is not None else ".")


def _low(size: Size) -> float:
    bound = size.efficiency.low if size.efficiency else None
    return float("-inf") if bound is None else bound


def _high(size: Size) -> float:
    bound = size.efficiency.high if size.efficiency else None
    return float("inf") if bound is None else bound
