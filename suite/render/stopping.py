"""At which k to stop: how many devices still pay, as a sentence for every trainer, workload and mode. Pure.

An epoch on k devices costs k times its seconds in device-seconds, which is 1/E_k times its cost on one device: the
efficiency is the share of the cost that buys work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from suite.plan import cells as planned
from suite.records.record import CellRecord, Record
from suite.render.figures import interval, number

WORTH = 0.80  # efficiency from which a device is said to pay: the same epoch costs a quarter more than on one


class Stop(NamedTuple):
    """At which k to stop with one trainer, workload and mode; its cells are in rising order of their world sizes."""

    title: str
    cells: list[CellRecord]

    @property
    def sentence(self) -> str:
        """Where to stop, and why."""
        known = [(cell, cell.efficiency) for cell in self.cells if cell.efficiency and cell.world_size > 1]
        if not known:
            shared = any(cell.oversubscribed for cell in self.cells)
            why = "devices were oversubscribed" if shared else "efficiency was not measured"
            return f"Where to stop is not known: {why}."
        bounded = [(cell, e.low, e.high) for cell, e in known if e.low is not None and e.high is not None]
        if not bounded:
            each = _each([cell for cell, _ in known])
            why = "one session shows no interval"
            return f"Where to stop is not known, because {why}: {each}; {WORTH:.2f} or more would pay."
        paying = [cell for cell, low, _ in bounded if low >= WORTH]
        if not paying:
            each = _each([cell for cell, *_ in bounded])
            if any(high >= WORTH for *_, high in bounded):
                return (
                    f"Whether more than one device pays is not known: {each}, and no whole interval is at least "
                    f"{WORTH:.2f}. More sessions narrow it."
                )
            return f"Stay with one device: {each}, the whole interval below {WORTH:.2f}."
        best = paying[-1]
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
    rows, names = [], planned.names(cell.trainer for cell in record.cells)
    for (trainer, workload, mode), cells in groups.items():
        cells.sort(key=lambda cell: cell.world_size)
        if cells[-1].world_size > 1:
            rows.append(Stop(f"{names[trainer]} {workload} {mode}", cells))
    return rows


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
