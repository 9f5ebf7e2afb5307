"""What one run knows while it measures: filled by `campaign`, read by `results`."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from suite import cells, record
from suite.bases import Base
from suite.cells import Arm, Cell, Side
from suite.config import Config
from suite.failure import WorkerFailure
from suite.session import Session
from suite.verdict import Verdict
from suite.workloads import Workload


@dataclass
class Measurement:
    """One run.

    Attributes:
        cells: those that pytest selected.
        commit, dirty: of the user's project when the run began.
        order_seed: draws the order in which arms are timed.
        neighbours: what else used the machine before the first session, in sentences.
        bases: what the candidate is compared with in this run, by side; none where only a stored baseline is there.
        versions: of each side's interpreter.
        trainers: a worker's answer to "describe", by side and trainer.
        datasets: by the name a workload gives: what was loaded, and where it lies.
        orders: for every arm what its workers are told.
        steps: training steps a window, by arm.
        lost: arms that failed, and why; they stay lost for the run.
        decided: cells with a PASS or FAIL against a base in the run, by side; decided once, they stay so.
        training_s: how much of the first session was training to accuracy.
        planned: sessions that the budget allows; 0 until the first has shown what one costs.
    """

    config: Config
    cells: Sequence[Cell]
    machine: record.Machine
    commit: str
    dirty: bool
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    order_seed: int = field(default_factory=lambda: random.SystemRandom().randrange(2**31))
    neighbours: list[str] = field(default_factory=list)
    bases: dict[Side, Base] = field(default_factory=dict)
    versions: dict[Side, dict[str, str]] = field(default_factory=dict)
    trainers: dict[tuple[Side, str], dict[str, Any]] = field(default_factory=dict)
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)
    orders: dict[Arm, dict[str, Any]] = field(default_factory=dict)
    steps: dict[Arm, int] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    lost: dict[Arm, WorkerFailure] = field(default_factory=dict)
    decided: dict[tuple[Cell, Side], Verdict] = field(default_factory=dict)
    accuracies: list[record.Accuracy] = field(default_factory=list)
    training_s: float = 0.0
    planned: int = 0
    interrupted: bool = False
    _begun: float = field(default_factory=time.monotonic)

    @property
    def run_id(self) -> str:
        """When the run began (UTC) and on which commit; the name of its folder."""
        return f"{self.started.astimezone(UTC):%Y%m%dT%H%M%SZ}-{self.commit[:7]}"

    @property
    def elapsed_s(self) -> float:
        """Wall seconds since the run began, starts included."""
        return time.monotonic() - self._begun

    @property
    def session_s(self) -> float:
        """Wall seconds of the last session, without the training in it; 0 before the first."""
        if not self.sessions:
            return 0.0
        return self.sessions[-1].wall_s - (self.training_s if len(self.sessions) == 1 else 0.0)

    def workload(self, name: str) -> Workload:
        """A workload of this run by its name."""
        return next(workload for workload in self.config.workloads if workload.name == name)

    def compared(self, cell: Cell) -> dict[Side, Arm]:
        """The arms a cell cannot do without: its own, and its bases' where they are in the run."""
        trainers: dict[Side, str] = {"candidate": cell.trainer}
        trainers |= {side: base.trainer or cell.trainer for side, base in self.bases.items()}
        return {side: cells.arm(side, trainer, cell) for side, trainer in trainers.items()}

    def failure(self, cell: Cell) -> WorkerFailure | None:
        """Why a cell has no answer, if an arm that it cannot do without was lost."""
        return next((self.lost[arm] for arm in self.compared(cell).values() if arm in self.lost), None)
