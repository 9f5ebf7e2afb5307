"""What one run is to measure, and what is known before its first process starts. Nothing here changes afterwards."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from suite.plan import cells
from suite.plan.cells import Arm, Cell, CollectiveCell
from suite.plan.config import Config
from suite.plan.floors import Floor
from suite.plan.workloads import Workload
from suite.processes.jobs import LOADERS
from suite.records import record
from suite.records.baselines import Baseline
from suite.records.calibration import Calibration
from suite.run import machine

STRETCH = 1.6  # times a profile's budget, for the sessions that take place in any case and what is done beside them
LEAST_DEADLINE_S = 60.0
LEAST_EXECUTED_S = 120.0  # on GPUs and on several hosts: every rank loads torch itself, all of them at the same time
FIRST_STEP_TIMEOUT_S = 120.0  # lazily built kernels, the first collective
COMPILING = 5  # times as long where every rank compiles forward and backward as well


@dataclass(frozen=True)
class Plan:
    """One run before it begins.

    Attributes:
        config: the user's settings.
        cells, sweeps: those that pytest selected.
        checks_to_come: how many correctness checks pytest selected as well; they run after the measurement.
        commit, dirty: of the user's project.
        commit_problem: git's last words where the commit is "unknown".
        baseline, calibration: of this machine; equal builds differ by what a calibration measured.
        main: the branch that changes of the project go to; empty where it is not known, or lacks a trainer of the run.
        floors: the least efficiency of the cells that have one.
        seed: draws the order in which arms are timed.
        clock: returns seconds and never goes back.
        begun_s: what `clock` showed when the run began.
    """

    config: Config
    cells: tuple[Cell, ...]
    machine: record.Machine
    commit: str
    dirty: bool
    baseline: Baseline
    calibration: Calibration | None = None
    main: str = ""
    commit_problem: str = ""
    floors: Mapping[Cell, Floor] = field(default_factory=dict)
    sweeps: tuple[CollectiveCell, ...] = ()
    checks_to_come: int = 0
    seed: int = field(default_factory=lambda: random.SystemRandom().randrange(2**31))
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: Callable[[], float] = time.monotonic
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def run_id(self) -> str:
        """When the run began (UTC) and on which commit; the name of its folder."""
        return f"{self.started.astimezone(UTC):%Y%m%dT%H%M%SZ}-{self.commit[:7]}"

    @property
    def elapsed_s(self) -> float:
        """Wall seconds since the run began, starts of processes included."""
        return self.clock() - self.begun_s

    @property
    def left_s(self) -> float:
        """Wall seconds until the end of the budget; less than 0 after it."""
        return self.config.budget.seconds - self.elapsed_s

    @property
    def overrun_s(self) -> float:
        """Wall seconds since the end of the budget; 0 before."""
        return max(0.0, -self.left_s)

    def beside_s(self, left_s: float, session_s: float, number: int) -> float:
        """Return how many seconds of a profile's stretched budget are for all but its timing.

        Args:
            left_s: of the budget.
            session_s: that a session takes.
            number: of the present session; those that take place in any case and follow it are taken off.
        """
        budget = self.config.budget
        return left_s + (STRETCH - 1) * budget.seconds - (budget.least_sessions - 1 - number) * session_s

    def deadline_s(self, longest_s: float) -> float:
        """Return how many seconds a step of the run may take that measures nothing: what is left of the budget.

        At most `longest_s`, and at least what a busy machine takes to start a session's processes.
        """
        devices = self.config.devices
        least_s = LEAST_DEADLINE_S if devices.kind == "cpu" and devices.hosts == 1 else LEAST_EXECUTED_S
        return min(longest_s, max(least_s, self.left_s))

    def first_step_s(self, arm: Arm) -> float:
        """Return how many seconds the first step of fresh processes may take."""
        compiles = self.workload(arm.workload).compile
        return self.deadline_s(FIRST_STEP_TIMEOUT_S * (COMPILING if compiles else 1))

    def workload(self, name: str) -> Workload:
        """Return a workload of this run by its name."""
        return next(workload for workload in self.config.workloads if workload.name == name)

    def loaders(self, workload: str) -> int:
        """Return how many processes feed a rank; 0 where a workload's data are in memory."""
        return LOADERS[self.workload(workload).loader]

    def own(self, cell: Cell) -> Arm:
        """Return the candidate's arm of a cell, whose time is the cell's."""
        return cells.arm("candidate", cell.trainer, cell)


def plan_here(config: Config, cells: Sequence[Cell]) -> Plan:
    """Return the plan of a run on this machine and on the commit that is checked out here, without a baseline."""
    about = machine.describe(config.devices)
    commit, dirty, commit_problem = machine.git_state(config.root, _sources(config))
    return Plan(
        config=config,
        cells=tuple(cells),
        machine=about,
        commit=commit,
        dirty=dirty,
        commit_problem=commit_problem,
        baseline=Baseline(machine_key=about.key),
        main=machine.main_branch(config.root, _files(config)),
    )


def _sources(config: Config) -> list[Path]:
    """Return where the code of the user's own trainers, models and data sets may be: files, and folders of packages."""
    sources = [source for source, _ in _named(config)]
    modules = [Path(source.partition(".")[0]) for source in sources if not source.endswith(".py")]
    files = [Path(source) for source in sources if source.endswith(".py")]
    files += [module.with_suffix(".py") for module in modules]
    return [folder / path for folder in config.paths for path in (*files, *modules)]


def _files(config: Config) -> list[tuple[Path, str]]:
    """Return the files that may have the user's own trainers, models and data sets, and the name of each."""
    found = []
    for source, name in _named(config):
        module = Path(*source.split("."))
        paths = [Path(source)] if source.endswith(".py") else [module.with_suffix(".py"), module / "__init__.py"]
        found += [(folder / path, name) for folder in config.paths for path in paths]
    return found


def _named(config: Config) -> list[tuple[str, str]]:
    """Return where the user's own trainers, models and data sets are, a file or a module, and the name of each."""
    factories = [name for workload in config.workloads for name in (workload.model, workload.dataset)]
    parts = [name.rpartition(":") for name in (*config.trainers, *factories)]
    return [(source, name) for source, colon, name in parts if colon]
