"""What one run knows while it measures: filled by `campaign`, read by `results`."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from suite.plan import cells
from suite.plan.base import Base
from suite.plan.cells import Arm, Cell, Side
from suite.plan.collectives import CollectiveCell
from suite.plan.config import Config
from suite.plan.floors import Floor
from suite.plan.workloads import Workload
from suite.processes.failure import WorkerFailure
from suite.records import record
from suite.records.baselines import Baseline
from suite.records.calibration import Calibration, Found, Spread
from suite.run.session import Session


@dataclass
class Measurement:
    """One run.

    Attributes:
        cells: those that pytest selected.
        commit, dirty: of the user's project when the run began.
        main: the branch that its changes go to; empty where that is not known.
        order_seed: draws the order in which arms are timed.
        baseline: the accepted one of this machine.
        calibration: how this machine differs from itself, where that was measured.
        floors: the least efficiency of the cells that have one.
        sweeps: collectives that pytest selected.
        collectives: what was found for them.
        neighbours: what else used the machine before the first session, in sentences.
        plan: what the run was going to do, in sentences.
        bases: what the candidate is compared with in this run, by side.
        beside: the cells that are: all of them beside a base that the user named, beside a rebuilt baseline those that
            it has.
        stored: what the accepted runs of other times say of each cell.
        versions: of each side's interpreter.
        trainers: a worker's answer to "describe", by side and trainer.
        datasets: by the name a workload gives: what was loaded, and where it lies.
        orders: for every arm what its workers are told.
        steps: training steps a window, by arm.
        gradient_bytes: that one replica exchanges at every step, by arm.
        unprobed: diagnostic variants that could not be timed, and why.
        unexplained: cells without a waterfall, and why.
        lost: arms that failed, and why; they stay lost for the run.
        untrained: arms whose nets were not trained for want of time, in words.
        training_s: how much of the first session was training to accuracy.
        alone: sessions that were over when the comparison with a rebuilt baseline began.
        planned: sessions that the budget allows from there on; 0 until the first has shown what one costs.
    """

    config: Config
    cells: Sequence[Cell]
    machine: record.Machine
    commit: str
    dirty: bool
    baseline: Baseline
    calibration: Calibration | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    order_seed: int = field(default_factory=lambda: random.SystemRandom().randrange(2**31))
    floors: dict[Cell, Floor] = field(default_factory=dict)
    sweeps: Sequence[CollectiveCell] = ()
    collectives: tuple[record.CollectiveRecord, ...] = ()
    neighbours: list[str] = field(default_factory=list)
    plan: list[str] = field(default_factory=list)
    bases: dict[Side, Base] = field(default_factory=dict)
    beside: list[Cell] = field(default_factory=list)
    stored: dict[Cell, tuple[record.CheckRecord, ...]] = field(default_factory=dict)
    versions: dict[Side, dict[str, str]] = field(default_factory=dict)
    trainers: dict[tuple[Side, str], dict[str, Any]] = field(default_factory=dict)
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)
    orders: dict[Arm, dict[str, Any]] = field(default_factory=dict)
    steps: dict[Arm, int] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    gradient_bytes: dict[Arm, int] = field(default_factory=dict)
    unprobed: dict[tuple[Arm, str], str] = field(default_factory=dict)
    unexplained: dict[Cell, str] = field(default_factory=dict)
    lost: dict[Arm, WorkerFailure] = field(default_factory=dict)
    accuracies: list[record.Accuracy] = field(default_factory=list)
    untrained: dict[Arm, str] = field(default_factory=dict)
    training_s: float = 0.0
    alone: int = 0
    planned: int = 0
    interrupted: bool = False
    main: str = ""
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
        """Wall seconds of the last session that timed blocks, without the training in it; 0 before the first."""
        timed = [session for session in self.sessions if session.windows] or self.sessions
        if not timed:
            return 0.0
        return timed[-1].wall_s - (self.training_s if timed[-1] is self.sessions[0] else 0.0)

    def workload(self, name: str) -> Workload:
        """A workload of this run by its name."""
        return next(workload for workload in self.config.workloads if workload.name == name)

    def spread(self, cell: Cell) -> Spread | None:
        """How a cell differs from itself on this host; None where it was not calibrated."""
        found = self.calibrated(cell)
        return None if found is None else found.spread

    def calibrated(self, cell: Cell) -> Found | None:
        """The same, and in words whose it is where another cell's stands in. Another host of the key says nothing."""
        if self.calibration is None or self.calibration.host != self.machine.host:
            return None
        workload = self.workload(cell.workload)
        return self.calibration.spread(cell.trainer, workload.hash, cell.mode, cell.world_size)

    def own(self, cell: Cell) -> Arm:
        """The arm whose time is the cell's."""
        return cells.arm("candidate", cell.trainer, cell)

    def compared(self, cell: Cell) -> dict[Side, Arm]:
        """The cell's own arm, and its bases'."""
        arms: dict[Side, Arm] = {"candidate": self.own(cell)}
        for side, base in self.bases.items():
            arms[side] = cells.arm(side, base.trainer or cell.trainer, cell)
        return arms

    def failure(self, cell: Cell) -> WorkerFailure | None:
        """Why a cell has no answer, if an arm that it cannot do without was lost.

        That is its own, and that of a base which the user named. A baseline that cannot be rebuilt leaves the cell
        INCONCLUSIVE.
        """
        needed = self.compared(cell).values() if self.config.against is not None else [self.own(cell)]
        return next((self.lost[arm] for arm in needed if arm in self.lost), None)
