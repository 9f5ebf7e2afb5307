"""What one run has seen so far. It only grows: the campaign and what it calls add to it, everything else reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from suite.plan import cells
from suite.plan.base import Base
from suite.plan.cells import Arm, Cell, Side
from suite.processes.failure import WorkerFailure
from suite.records import record
from suite.run.plan import Plan
from suite.run.session import Session

Key = TypeVar("Key")
Value = TypeVar("Value")


class Facts(dict[Key, Value]):
    """A dict that only grows.

    Raises:
        ValueError: a key that is known gets another value.
    """

    def __setitem__(self, key: Key, value: Value) -> None:
        if self.setdefault(key, value) != value:
            raise ValueError(f"{key} is known as {self[key]!r} and cannot become {value!r}")

    def __ior__(self, other: Mapping[Key, Value]) -> Self:  # type: ignore[override, misc]
        for key, value in other.items():
            self[key] = value
        return self


@dataclass
class Observations:
    """What a run has seen so far.

    Attributes:
        plan: what it is to measure.
        neighbours: what else used the machine before the first session, in sentences.
        notes: what the run was going to do, in sentences.
        versions: of each side's interpreter.
        trainers: a worker's answer to "describe", by side and trainer.
        datasets: by the name a workload gives: what was loaded, and the folder it is kept in.
        orders: for every arm what its workers are told.
        steps: training steps a window, by arm.
        gradient_bytes: that one replica exchanges at every step, by arm.
        sessions: those that ended, and the last one that was cut short.
        lost: arms that failed, and why; they stay lost for the run.
        unprobed: diagnostic variants that could not be timed, and why.
        unexplained: cells without a waterfall, and why.
        accuracies: nets that were trained.
        untrained: arms whose nets were not trained for want of time, in words.
        training_s: how much of the first session was training to accuracy.
        collectives: what was measured for the plan's sweeps.
        stored: what the accepted runs of other times say of each cell.
        bases: what the candidate is compared with in this run, by side.
        beside: the cells that are compared with them: all cells with a base that the user named, and those that have a
            baseline with a rebuilt one.
        alone: sessions that were over when the comparison with a rebuilt baseline began.
        planned: sessions that the budget allows from there on; 0 until the first has shown what one costs.
        interrupted: by Ctrl-C.
    """

    plan: Plan
    neighbours: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: Facts[Side, dict[str, str]] = field(default_factory=Facts)
    trainers: Facts[tuple[Side, str], dict[str, Any]] = field(default_factory=Facts)
    datasets: Facts[str, dict[str, Any]] = field(default_factory=Facts)
    orders: Facts[Arm, dict[str, Any]] = field(default_factory=Facts)
    steps: Facts[Arm, int] = field(default_factory=Facts)
    gradient_bytes: Facts[Arm, int] = field(default_factory=Facts)
    sessions: list[Session] = field(default_factory=list)
    lost: dict[Arm, WorkerFailure] = field(default_factory=dict)
    unprobed: dict[tuple[Arm, str], str] = field(default_factory=dict)
    unexplained: dict[Cell, str] = field(default_factory=dict)
    accuracies: list[record.Accuracy] = field(default_factory=list)
    untrained: dict[Arm, str] = field(default_factory=dict)
    training_s: float = 0.0
    collectives: tuple[record.CollectiveRecord, ...] = ()
    stored: dict[Cell, tuple[record.CheckRecord, ...]] = field(default_factory=dict)
    bases: dict[Side, Base] = field(default_factory=dict)
    beside: list[Cell] = field(default_factory=list)
    alone: int = 0
    planned: int = 0
    interrupted: bool = False

    @property
    def session_s(self) -> float:
        """Wall seconds of the last session that timed blocks, without the training in it; 0 before the first."""
        timed = [session for session in self.sessions if session.windows] or self.sessions
        if not timed:
            return 0.0
        return timed[-1].wall_s - (self.training_s if timed[-1] is self.sessions[0] else 0.0)

    def compared(self, cell: Cell) -> dict[Side, Arm]:
        """Return the cell's own arm, and its bases'."""
        arms: dict[Side, Arm] = {"candidate": self.plan.own(cell)}
        for side, base in self.bases.items():
            arms[side] = cells.arm(side, base.trainer or cell.trainer, cell)
        return arms

    def failure(self, cell: Cell) -> WorkerFailure | None:
        """Return why a cell has no answer, if an arm that it cannot do without was lost.

        That is its own arm, and that of a base which the user named. A baseline that cannot be rebuilt leaves the cell
        INCONCLUSIVE.
        """
        needed = self.compared(cell).values() if self.plan.config.against is not None else [self.plan.own(cell)]
        return next((self.lost[arm] for arm in needed if arm in self.lost), None)
