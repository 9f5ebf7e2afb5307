"""Two runs side by side: what differs around them, and every cell that both have. It judges nothing. Pure.

Anything on a machine may have changed between two runs, and the sessions of one do not show by how much, so a ratio of
times has no interval. Times of different machines, workloads or data are not divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from suite.plan import cells
from suite.plan.cells import Arm, Cell
from suite.records.record import CellRecord, Record, oversubscribed_mark


class Difference(NamedTuple):
    """One thing that is not the same in two runs; "-" where a run does not have it."""

    what: str
    first: str
    second: str


def differences(
    first: Mapping[str, object], second: Mapping[str, object], *, common: bool = False, prefix: str = ""
) -> list[Difference]:
    """Return what has different values by name, in the order of the first run.

    With `common`, what only one of them has is left out. `prefix` is that of every name in the result.
    """
    names = [name for name in dict.fromkeys((*first, *second)) if not common or (name in first and name in second)]
    return [
        Difference(prefix + name, _words(first.get(name)), _words(second.get(name)))
        for name in names
        if first.get(name) != second.get(name)
    ]


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return " | ".join(map(str, value)) or "-"
    return "-" if value is None or value == "" else str(value)


class Pair(NamedTuple):
    """A cell in both runs; `ratio` is seconds of the second over the first, or None, and `note` says why."""

    name: str
    first: CellRecord
    second: CellRecord
    ratio: float | None
    note: str


class Comparison(NamedTuple):
    """Two runs: what differs, the cells that both have in the first one's order, and the names of each one's others."""

    first: Record
    second: Record
    differences: list[Difference]
    pairs: list[Pair]
    only_first: list[str]
    only_second: list[str]


def compare(first: Record, second: Record) -> Comparison:
    """Compare two runs, usually an older and a newer one."""
    before, after = _by_arm(first), _by_arm(second)
    names = cells.names(cell.trainer for cell in (*first.cells, *second.cells))

    def name(*same: CellRecord) -> str:
        cell, mark = same[0], max(map(oversubscribed_mark, same))
        return f"{names[cell.trainer]} {cell.workload} {cell.mode} {cell.world_size}{mark}"

    pairs = [
        Pair(name(old, new), old, new, *_ratio(first, second, old, new))
        for arm, old in before.items()
        if (new := after.get(arm))
    ]
    return Comparison(
        first,
        second,
        _differences(first, second),
        pairs,
        [name(cell) for arm, cell in before.items() if arm not in after],
        [name(cell) for arm, cell in after.items() if arm not in before],
    )


def _by_arm(record: Record) -> dict[Arm, CellRecord]:
    """Return a run's cells by what was timed: on one device strong and weak are one."""
    found: dict[Arm, CellRecord] = {}
    for cell in record.cells:
        found.setdefault(cells.arm("candidate", cell.trainer, Cell(*cell.place)), cell)
    return found


def _differences(first: Record, second: Record) -> list[Difference]:
    machines, environments = ([of(run) for run in (first, second)] for of in (_machine, _environment))
    changed = differences(*machines, prefix="machine ") + differences(*environments)
    for name in ("tolerance", "against", "settings"):
        changed += differences({name: getattr(first, name)}, {name: getattr(second, name)})
    for prefix, field in (("definition of workload ", "workload_hashes"), ("dataset of ", "datasets")):
        changed += differences(getattr(first, field), getattr(second, field), common=True, prefix=prefix)
    return changed


def _machine(record: Record) -> dict[str, object]:
    cards = {f"GPU {card.index} ({card.id})": card.words for card in record.machine.cards}
    return {**record.machine.model_dump(exclude={"cards"}), **cards}


def _environment(record: Record) -> dict[str, object]:
    code = record.environment
    changes = " with uncommitted changes" if code.dirty else ""
    return {"commit": code.commit + changes, **code.versions, **code.variables}


def _ratio(a: Record, b: Record, first: CellRecord, second: CellRecord) -> tuple[float | None, str]:
    """Return seconds of the second over the first, or why they must not be divided."""
    workload, times = first.workload, [cell.sec_per_epoch for cell in (first, second)]
    if a.machine.key != b.machine.key:
        return None, f"different machines ({a.machine.key}, {b.machine.key})"
    known_s = [time.estimate for time in times if time is not None and time.estimate > 0]
    ratio = known_s[1] / known_s[0] if len(known_s) == 2 else 0.0
    if not 0 < ratio < math.inf:
        return None, "not measured in both"
    if workload not in a.workload_hashes or a.workload_hashes[workload] != b.workload_hashes.get(workload):
        return None, f"workload {workload} is defined differently in the two runs"
    if a.datasets.get(workload) != b.datasets.get(workload):
        return None, f"workload {workload} was timed on different data"
    if first.oversubscribed != second.oversubscribed:
        return None, "oversubscribed in one of the two runs alone"
    return ratio, ""
