"""What one run has observed so far. The campaign and what it calls add to it; everything else reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Self, TypeVar

from suite.plan import cells
from suite.plan.cells import Arm, Cell, Side
from suite.plan.config import Base
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Job, Prepared
from suite.properties.answers import About
from suite.records import record
from suite.records.baselines import Identity
from suite.records.calibration import Entry
from suite.records.counters import Counters, RankMemory
from suite.room.conditions import Conditions, disturbed
from suite.run import blocks
from suite.run.plan import Plan
from suite.run.timer import MORE_SHARE
from suite.verdict.paired import sessions_needed
from suite.verdict.spread import MOST_DF

Key = TypeVar("Key")
Value = TypeVar("Value")


class Facts(dict[Key, Value]):
    """A dict that only grows.

    Raises:
        ValueError: a key that is known gets another value.
    """

    def __setitem__(self, key: Key, value: Value) -> None:
        if self.setdefault(key, value) != value:
            raise ValueError(f"{key} is known as {self[key]!r} and cannot become {value!r}: what is known stays")

    def __ior__(self, other: Mapping[Key, Value]) -> Self:  # type: ignore[override, misc]
        for key, value in other.items():
            self[key] = value
        return self


@dataclass
class Session:
    """What one session measured.

    Attributes:
        training_s, counting_s, explaining_s, filling_s: wall seconds that were training, counting what a step does,
            timing the parts of cells that look slower, and more blocks than a session needs.
        starting_s, warming_s, timing_s: wall seconds until all processes have started (on GPUs: and taken a step), with
            its share of loading templates; of the warm-up; of all blocks.
        waiting_s: wall seconds that it waited for templates; those of several sessions are loaded at the same time.
        loading_s: its equal share of that loading.
        windows: in the order they were timed.
        conditions: of each block.
        probes: of each cell, timed after the blocks, to say where the time goes.
        failures: the arms that were lost, with reasons.
        unclean: how many windows of a script held something else than steps, and were taken again.
    """

    number: int
    started_utc: str = ""
    wall_s: float = 0.0
    training_s: float = 0.0
    counting_s: float = 0.0
    explaining_s: float = 0.0
    filling_s: float = 0.0
    starting_s: float = 0.0
    warming_s: float = 0.0
    timing_s: float = 0.0
    waiting_s: float = 0.0
    loading_s: float = 0.0
    windows: list[record.Window] = field(default_factory=list)
    conditions: list[Conditions] = field(default_factory=list)
    probes: dict[Cell, list[record.Probe]] = field(default_factory=dict)
    failures: dict[Arm, WorkerFailure] = field(default_factory=dict)
    unclean: dict[Arm, int] = field(default_factory=dict)

    @property
    def usual_s(self) -> float:
        """Wall seconds without what not every session does, and with an equal share of what several do at once."""
        own_s = self.wall_s - self.training_s - self.counting_s - self.explaining_s - self.filling_s
        return own_s - self.waiting_s + self.loading_s

    @property
    def left_out(self) -> set[int]:
        """The disturbed blocks, marked by their conditions alone and never by their times.

        Where most of a session was disturbed, the disturbance is the machine's normal state, and every block counts.
        """
        marked = {number for number, conditions in enumerate(self.conditions) if disturbed(conditions)}
        return marked if 2 * len(marked) <= len(self.conditions) else set()

    def to_record(self) -> record.Session:
        """Return the session as the run's record keeps it."""
        return record.Session(
            number=self.number,
            started_utc=self.started_utc,
            wall_s=round(self.wall_s, 3),
            waiting_s=round(self.waiting_s, 3),
            starting_s=round(max(0.0, self.starting_s - self.loading_s), 3),
            warming_s=round(self.warming_s, 3),
            timing_s=round(self.timing_s, 3),
            training_s=round(self.training_s, 3),
            explaining_s=round(self.explaining_s, 3),
            counting_s=round(self.counting_s, 3),
            windows=tuple(self.windows),
            conditions=tuple(self.conditions),
            left_out=tuple(sorted(self.left_out)),
            probes=tuple(chain.from_iterable(self.probes.values())),
        )


class Left(NamedTuple):
    """A cell that left its time to others: after how many sessions, and after how many it would have been decided.

    `needed` is None where more time would not do.
    """

    sessions: int
    needed: int | None


@dataclass(frozen=True)
class Comparison:
    """What the candidate is compared with in the same sessions.

    Attributes:
        bases: by side; empty where the candidate is measured without a base.
        cells: those that are compared: all cells with a base that the user named, and otherwise those whose accepted
            commits are rebuilt.
        sides: with which of the bases a cell is compared, where that is not each of them.
        apart: cells with an accepted commit that could be rebuilt, where the run rebuilds another one.
        over_budget: cells that the budget has no room for; among `cells` are those that were compared in the first
            sessions all the same.
        left: cells that left their time to others.
        needed_s: the budget that has room for all cells, as far as it is known; 0 where no cell was left out.
    """

    bases: Mapping[Side, Base] = field(default_factory=dict)
    cells: tuple[Cell, ...] = ()
    sides: Mapping[Cell, tuple[Side, ...]] = field(default_factory=dict)
    apart: tuple[Cell, ...] = ()
    over_budget: tuple[Cell, ...] = ()
    left: Mapping[Cell, Left] = field(default_factory=dict)
    needed_s: float = 0.0

    @property
    def room(self) -> str:
        """Which budget has room for all cells, in words that follow others; "" where none was left out."""
        tens = math.ceil(self.needed_s * 1.1 / 10) * 10  # sessions may take a little longer than planned
        return f" (about {tens} s have room for all)" if self.needed_s else ""

    @property
    def judged(self) -> tuple[Cell, ...]:
        """Those that the budget has room for."""
        return tuple(cell for cell in self.cells if cell not in self.over_budget)

    @property
    def timed(self) -> tuple[Cell, ...]:
        """Those of them that have not left their time to others."""
        return tuple(cell for cell in self.judged if cell not in self.left)


@dataclass
class Observations:
    """What a run has observed so far.

    Attributes:
        neighbours: what else used the machine before the first session, in sentences.
        notes: the forecast of the run and what its bases lack, in sentences.
        versions: of each side's interpreter.
        trainers: what a worker says of each, by side and trainer.
        datasets: by the name a workload gives: what was loaded, and the folder that keeps it.
        jobs: what the workers of each arm are told (see `suite.run.preparing.job_of`).
        steps: training steps a window, by arm.
        gradient_bytes: what one replica exchanges at every step, by arm.
        sample_flop: floating-point operations of training on one sample, by arm; 0 where they were not counted.
        work: rows of minibatches and backward passes in an update of a script's rank, by arm; 0 where not known.
        memory: the peak memory of each rank, by arm.
        transports: how NCCL connected the ranks, by arm; in the terms of `suite.rank.recorder.said`.
        counters: what one step does, by arm.
        uncounted: arms whose steps could not be counted, and why.
        sessions: those that ended, and the last one where it was cut short.
        discarded: sessions that do not count, because the launcher of their workers ended.
        lost: arms that failed, and why; they are not started again in this run.
        unprobed: diagnostic variants that could not be timed, and why.
        late_s: cells without a waterfall for lack of time, and how many seconds it takes.
        unexplained: others without one, and why.
        apart_pace: how many times the least seconds that they could take the last waterfalls took.
        untrained: arms whose nets were not trained, and why.
        stored: what accepted runs of other times say of each cell.
        comparison: what the cells are compared with.
        planned: sessions that the budget allows; 0 until one that the later ones resemble has shown how long it takes.
        cut_short: how the run was ended before it was complete, in words; empty where it was not.
    """

    plan: Plan
    neighbours: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: Facts[Side, dict[str, str]] = field(default_factory=Facts)
    trainers: Facts[tuple[Side, str], About] = field(default_factory=Facts)
    datasets: Facts[str, Prepared] = field(default_factory=Facts)
    jobs: Facts[Arm, Job] = field(default_factory=Facts)
    steps: Facts[Arm, int] = field(default_factory=Facts)
    gradient_bytes: Facts[Arm, int] = field(default_factory=Facts)
    sample_flop: Facts[Arm, int] = field(default_factory=Facts)
    work: Facts[Arm, tuple[float, float]] = field(default_factory=Facts)
    memory: dict[Arm, tuple[RankMemory, ...]] = field(default_factory=dict)
    transports: Facts[Arm, tuple[str, ...]] = field(default_factory=Facts)
    counters: Facts[Arm, Counters] = field(default_factory=Facts)
    uncounted: dict[Arm, str] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    discarded: list[Session] = field(default_factory=list)
    lost: dict[Arm, WorkerFailure] = field(default_factory=dict)
    unprobed: dict[tuple[Arm, str], str] = field(default_factory=dict)
    late_s: dict[Cell, float] = field(default_factory=dict)
    unexplained: dict[Cell, str] = field(default_factory=dict)
    apart_pace: float = 1.0
    accuracies: list[record.Accuracy] = field(default_factory=list)
    untrained: dict[Arm, str] = field(default_factory=dict)
    collectives: tuple[record.CollectiveRecord, ...] = ()
    stored: Mapping[Cell, tuple[record.CheckRecord, ...]] = field(default_factory=dict)
    comparison: Comparison = field(default_factory=Comparison)
    planned: int = 0
    cut_short: str = ""

    @property
    def session_s(self) -> float:
        """`Session.usual_s` of the last session that timed blocks; 0 before the first."""
        timed = [session for session in self.sessions if session.windows] or self.sessions
        return timed[-1].usual_s if timed else 0.0

    @property
    def uncalibrated(self) -> str:
        """Why there is no calibration that says anything about this run, in words; "" where there is one."""
        if self.plan.calibration is None:
            return "it was never calibrated"
        versions = self.versions.get("candidate", {})
        return self.plan.calibration.why_unused(self.plan.machine.host, versions, self.plan.started)

    def calibrated(self, cell: Cell) -> Entry | None:
        """Return how much equal builds of a cell differ here, and which cell that was measured on, if it is known."""
        if self.plan.calibration is None or self.uncalibrated:
            return None
        workload = self.plan.workload(cell.workload)
        return self.plan.calibration.find(cell.trainer, workload.hash, cell.mode, cell.world_size)

    @property
    def compares_first(self) -> bool:
        """Whether nets are trained in what the comparison leaves of the budget (docs/adr/0004)."""
        config = self.plan.config
        accepted = bool(self.comparison.bases) and config.against is None
        return accepted and config.profile == "quick" and config.accept is None

    @property
    def comparisons_alone(self) -> int:
        """How many of the comparisons that are judged have no other processes beside them at their world size."""
        judged: dict[tuple[Side, int], set[Arm]] = {}
        for cell in self.comparison.judged:
            own, *bases = self.arms(cell).items()
            for side, base in bases:
                if own[1] not in self.lost and base not in self.lost:
                    judged.setdefault((side, cell.world_size), set()).add(own[1])
        return sum(len(arms) for arms in judged.values() if len({arm.processes for arm in arms}) == 1)

    @property
    def sessions_needed(self) -> int:
        """How many sessions a plan must have for any cell to be decided."""
        return sessions_needed(self.comparisons_alone)

    @property
    def sessions_lacking(self) -> int:
        """How many more sessions that takes, at least the next one."""
        return max(1, self.sessions_needed - len(self.sessions))

    def has_base(self, cell: Cell) -> bool:
        """Return whether a cell is compared with a commit that could be had."""
        compared = cell in self.comparison.cells
        return compared and any(arm.side != "candidate" and arm not in self.lost for arm in self.arms(cell).values())

    def never_timed(self, unit: tuple[Arm, ...]) -> bool:
        """Return whether an arm has no sample: another arm broke their processes, and one more session is due to it."""
        timed = {window.arm for session in self.sessions for window in session.windows}
        return any(arm.id not in timed for arm in unit)

    def for_slower_cells_s(self, of_figures: int) -> float:
        """Return how long cells were taken apart that look slower, beyond the waterfalls that figures need anyway.

        Args:
            of_figures: the number of sessions with these, which are the first ones.
        """
        first, *later = self.sessions
        of_figures_s = [first.explaining_s if each.number < of_figures else 0.0 for each in later]
        return math.fsum(max(0.0, each.explaining_s - s) for each, s in zip(later, of_figures_s, strict=True))

    def block_count(self, start_s: float, round_s: float, budget_s: float, spare: float = MORE_SHARE) -> int:
        """Return how many blocks each session to come has; arguments as in `blocks.count` and its `Costs`."""
        alone = self.comparisons_alone and not all(self.calibrated(cell) for cell in self.comparison.judged)
        df = 0.0 if alone else MOST_DF  # what other cells or a calibration add to those of a cell's own sessions
        costs = blocks.Costs(start_s, round_s, spare)
        return blocks.count(costs, budget_s, self.sessions_lacking, df, len(self.sessions))

    def arms(self, cell: Cell) -> dict[Side, Arm]:
        """Return the candidate's arm of a cell and those of the bases that it is compared with."""
        arms: dict[Side, Arm] = {"candidate": self.plan.own(cell)}
        for side in self.comparison.sides.get(cell, self.comparison.bases):
            arms[side] = cells.arm(side, self.comparison.bases[side].trainer or cell.trainer, cell)
        return arms

    def processes(self, arms: Iterable[Arm]) -> int:
        """Return how many processes train these arms; the modes of one trainer and world size share them."""
        return sum({arm.processes: self.jobs[arm].size for arm in arms}.values())

    def identity(self, arm: Arm) -> Identity | None:
        """Return by what accepted runs are searched for an arm; None where its dataset was not loaded."""
        workload = self.plan.workload(arm.workload)
        if workload.dataset not in self.datasets:
            return None
        shared, dataset = self.plan.config.devices.oversubscribed(arm.world_size), self.datasets[workload.dataset].name
        return Identity(arm.trainer, arm.mode, arm.world_size, workload.hash, dataset, shared)

    def failure(self, cell: Cell) -> WorkerFailure | None:
        """Return why a cell is an ERROR; None where it is not.

        A cell needs its own arm, and that of a base which the user named. Where a rebuilt commit is lost, the cell is
        INCONCLUSIVE.
        """
        needed = self.arms(cell).values() if self.plan.config.against is not None else [self.plan.own(cell)]
        return next((self.lost[arm] for arm in needed if arm in self.lost), None)
