"""What more devices would give: a projection from the parts of a measured step and the sweep of all_reduce. Pure.

It starts at the largest world size m that was measured. With t_1 the step of one device on the whole batch,

    step(k) = t_1 / k + small (1 - 1 / k) / (1 - 1 / m) + grows m / k + stays + exchange + T(k) - T(m),

where every name is a bar of the waterfall at m (`PROPORTIONAL` grows with the work on a device) and T is a ring's
all_reduce with the fitted alpha and beta: 2 (k - 1) messages of a k-th of the gradients. In weak scaling the first
terms do not change with k. A process that drives all devices repeats its overhead and exchange for each further one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from suite.plan import cells
from suite.plan.cells import Cell
from suite.records.record import ArmRecord, CellRecord, CollectiveRecord, Record, WaterfallRecord

WORLD_SIZES = (4, 8, 16, 32, 64)  # the documents' three, and beyond
BACKENDS = ("nccl", "gloo")  # what the processes of a trainer talk through
PROPORTIONAL = frozenset(("contention", "imbalance", "feed"))
ASSUMPTIONS = (
    "A projection, not a measurement: it assumes that further devices and links are like the measured ones, that "
    "contention, imbalance and the feed grow with the work on a device, that one ring all_reduce a step follows the "
    "line of this run's sweep and as much of it stays hidden, that a process which drives all devices repeats its "
    "overhead and exchange for each further one, and that nothing else changes."
)


class Point(NamedTuple):
    """What to expect of `world_size` devices; the exchange is the part of the step that nothing hides."""

    world_size: int
    step_s: float
    exchange_s: float
    efficiency: float


class Projection(NamedTuple):
    """What is projected from a cell, the largest of its kind that allows it, or why nothing is."""

    cell: CellRecord
    points: tuple[Point, ...] = ()
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
            arm = arms.get(cells.arm("candidate", cell.trainer, Cell(*cell.place)).id)
            try:
                found[place] = Projection(cell, _points(cell, arm, sweeps.get(cell.world_size), world_sizes))
            except ValueError as error:
                found[place] = known or Projection(cell, reason=str(error))
    return tuple(found.values())


def _points(
    cell: CellRecord, arm: ArmRecord | None, sweep: CollectiveRecord | None, world_sizes: Sequence[int]
) -> tuple[Point, ...]:
    """Return what to expect at the world sizes beyond the cell's own.

    Raises:
        ValueError: what is missing for it, in words.
    """
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
    return tuple(_point(cell, waterfall, ring_s, k) for k in world_sizes if cell.world_size < k <= most)


def _point(cell: CellRecord, waterfall: WaterfallRecord, ring_s: tuple[float, float] | None, k: int) -> Point:
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
    return Point(k, step_s, exchange_s, ideal_s / step_s)
