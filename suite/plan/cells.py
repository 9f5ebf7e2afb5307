"""What is asked and what is timed for it: cells (one pytest item each) and arms (one thing timed in turn)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from reference.schedule import scale
from suite.plan.workloads import Workload

# A base is what the candidate is compared with; the pinned base is an older one, for what creeps.
Side = Literal["candidate", "base", "pinned"]

YARDSTICK = "single"  # the plain trainer on one device, whose time stands behind every speed-up
PLAIN = "suite.rank.independent:Independent"  # the same on each of k devices, which exchange nothing


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


def units(cells: Sequence[Cell], bases: Mapping[Side, str | None]) -> list[tuple[Arm, ...]]:
    """The arms whose times are compared: each cell's own and its bases', which stay next to each other in a block.

    Args:
        bases: the trainer of each base; None is the cell's own trainer.
    """
    return list(
        dict.fromkeys(
            (
                arm("candidate", cell.trainer, cell),
                *(arm(side, trainer or cell.trainer, cell) for side, trainer in bases.items()),
            )
            for cell in cells
        )
    )


def yardsticks(cells: Sequence[Cell], *, speedup: bool) -> list[tuple[Arm, ...]]:
    """The arms that efficiency needs, the same trainer on one device, and the plain trainer that speed-up needs."""
    trainers = [[cell.trainer, YARDSTICK] if speedup else [cell.trainer] for cell in cells]
    wanted = [(arm("candidate", name, cell, 1),) for cell, names in zip(cells, trainers, strict=True) for name in names]
    return list(dict.fromkeys(wanted))


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
