"""What is asked and what is timed for it: cells (one pytest item each) and arms (one thing timed in turn)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from reference.schedule import scale
from suite.workloads import Workload

Side = Literal["candidate", "base"]

YARDSTICK = "single"  # the plain trainer on one device, whose time stands behind every speed-up


def short(trainer: str) -> str:
    """A trainer's table name, or the class name of one of the user's own."""
    return trainer.rpartition(":")[2]


@dataclass(frozen=True)
class Cell:
    """trainer x workload x mode x world size."""

    trainer: str
    workload: str
    mode: str
    world_size: int

    @property
    def id(self) -> str:
        """Readable; the pytest item's parameter id."""
        return f"{short(self.trainer)}-{self.workload}-{self.mode}-{self.world_size}"


@dataclass(frozen=True)
class Arm:
    """One thing that is timed in turn: a trainer at one world size, for one side of the comparison.

    At world size 1 strong and weak are the same thing, so there is one arm for both, measured once.
    """

    side: Side
    trainer: str
    workload: str
    mode: str
    world_size: int

    @property
    def id(self) -> str:
        """Unique within a run."""
        return f"{self.side}:{self.trainer}:{self.workload}:{self.mode}:{self.world_size}"


def arm(side: Side, trainer: str, cell: Cell, world_size: int | None = None) -> Arm:
    """The arm of a cell's workload and mode, for a side, a trainer and a world size (the cell's own by default)."""
    size = cell.world_size if world_size is None else world_size
    return Arm(side, trainer, cell.workload, cell.mode if size > 1 else "strong", size)


def units(cells: Sequence[Cell], against: str | None) -> list[tuple[Arm, ...]]:
    """The arms that a session times, in groups whose members are compared most closely and so stay next to each other.

    With a base in the run: candidate and base of each cell. Without: each cell's arm, the same trainer on one device
    (for the efficiency), and the yardstick (for the speed-up).
    """
    found: dict[tuple[Arm, ...], None] = {}
    for cell in cells:
        own = arm("candidate", cell.trainer, cell)
        if against is not None:
            found[own, arm("base", against, cell)] = None
        else:
            found[(own,)] = None
            found[(arm("candidate", YARDSTICK, cell, 1),)] = None
    timed = {arm for unit in found for arm in unit}
    one_device = [arm("candidate", cell.trainer, cell, 1) for cell in cells]
    return list(found) + [(alone,) for alone in dict.fromkeys(one_device) if alone not in timed]


def describe(arm: Arm, workload: Workload, **where: Any) -> dict[str, Any]:
    """What a worker must know of an arm, as JSON.

    Args:
        where: what the run adds: processes, devices, cores, backend, seed, dataset, dataset_folder, data_root.
    """
    batch, lr = scale(arm.mode, arm.world_size, workload.batch, workload.lr, workload.lr_rule)
    return {
        "trainer": arm.trainer,
        "world_size": arm.world_size,
        "global_batch": batch,
        "lr": lr,
        "workload": workload.model_dump(mode="json", exclude={"published"}),
        **where,
    }
