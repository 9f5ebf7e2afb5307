"""Campaigns without processes: a world that decides what every arm takes, which arms fail, and what the clock says."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.base.git import CheckoutError
from suite.plan.cells import Arm, Cell, CollectiveCell, Side
from suite.plan.config import Base, Config
from suite.processes.failure import WorkerFailure
from suite.properties.answers import About
from suite.records.counters import Count, Counters
from suite.records.record import CellRecord, Probe
from suite.run import campaign, results
from suite.run.groups import Groups
from suite.run.observations import Observations, Session
from suite.run.plan import Plan
from suite.run.session import Next
from suite.run.variants import Target
from suite.verdict import Outcome
from tests.support.measurements import BLOCKS, WOBBLE, add_session, arm, cell, forth_and_back, job, run_of

NEIGHBOUR = "pid 1 (make) uses 90 % of a core"
ONE, TWO, WEAK = cell(1), cell(2), cell(2, mode="weak")
OWN, BASE, PIN = arm(2), arm(2, side="base"), arm(2, side="pinned")
ALONE = {arm(1), arm(1, "single")}  # what the figures of two devices need
EQUAL = {arm(1): 1.0, arm(1, side="base"): 1.0, OWN: 0.5, BASE: 0.5}
SLOWER = {**EQUAL, OWN: 5.0}


@dataclass
class World:
    """Replaces workers, checkouts and the clock of a run."""

    step_s: Mapping[Arm, float] = field(default_factory=dict)  # of every arm; one second where an arm is not in it
    wobble: float = WOBBLE  # candidates are this much slower in every other session, and faster in the others
    session_s: Sequence[float] = (10.0,)  # the last value is for all later sessions
    training_s: float = 0.0  # in the first session
    counting_s: float = 0.0  # in the first session
    known_step_s: Mapping[Arm, float] = field(default_factory=dict)  # what forecasts know after the first session
    next_load_s: float = 2.0  # what a session waits for its template; 2 s of each are its share
    explaining_s: float = 0.0  # in every session that takes cells apart
    operators: Mapping[Side, int] = field(default_factory=dict)  # that a step of each side dispatches
    broken: Mapping[int, set[Arm]] = field(default_factory=dict)  # arms that fail, by session
    shares: Mapping[Arm, Arm] = field(default_factory=dict)  # arms that fail with another, whose processes they share
    discarded_in: int | None = None  # the session whose launcher ends, the first time
    interrupted_in: int | None = None  # the session whose first block ends in Ctrl-C
    not_there: Collection[Side] = ()  # sides whose commit cannot be checked out
    now: float = 0.0
    timed: list[set[Arm]] = field(default_factory=list)  # the arms of every session that timed blocks
    fits: int = 0  # how many shorter sessions there may be
    fitted: list[int] = field(default_factory=list)  # how many sessions that was asked of
    shares_s: list[float] = field(default_factory=list)  # in which the blocks of every session may end
    untimed: list[set[Arm]] = field(default_factory=list)  # the other arms of every session
    probed: dict[int, list[tuple[str, Side]]] = field(default_factory=dict)  # waterfalls that were measured, by session
    trained: list[int] = field(default_factory=list)  # sessions with training; -1 for one apart
    apart: list[set[Arm]] = field(default_factory=list)
    diverges: Collection[Arm] = ()
    counted: list[tuple[int, tuple[Cell, ...]]] = field(default_factory=list)  # sessions with counting, and their cells
    swept: list[CollectiveCell] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def measure(self, *cells: Cell, config: Config | None = None, **changes: Any) -> Observations:
        self.now = 0.0
        for seen in (self.timed, self.shares_s, self.untimed, self.trained, self.apart, self.probed, self.counted):
            seen.clear()
        self.run = run_of(*cells, config=config, planned=0, clock=lambda: self.now, begun_s=0.0, **changes)
        collaborators = campaign.Collaborators(
            neighbours=lambda devices: (NEIGHBOUR,),
            sides=lambda *_: PretendedSides(self),
            sessions=lambda *_: PretendedSessions(self),
            prepare=self.prepare,
            training=self.training,
            probing=self.probing,
            counting=self.counting,
            sweep=self.sweep,
        )
        campaign.measure(self.run, self.said.append, collaborators)
        return self.run

    def cells(self) -> dict[str, CellRecord]:
        return {record.id: record for record in results.to_record(self.run).cells}

    def outcomes(self) -> list[Outcome]:
        return [judged.outcome for judged in self.cells().values()]

    def prepare(self, run: Observations, sides: Any, arms: Sequence[Arm], say: Any) -> None:
        run.jobs |= {each: job(each) for each in arms if each not in run.lost}
        for each in arms:
            run.trainers.setdefault((each.side, each.trainer), About(processes="per-device"))

    def training(self, run: Observations, *_: object) -> Callable[[Groups], None]:
        def train(groups: Groups) -> None:
            self.trained.append(groups.session.number)
            groups.session.training_s = self.training_s
            groups.session.failures |= dict.fromkeys(self.diverges, WorkerFailure("group", "the loss is not finite"))

        return train

    def probing(self, run: Observations, sessions: Any, wanted: Sequence[Target], say: Any) -> Callable[[Groups], None]:
        def probe(groups: Groups) -> None:
            self.probed[groups.session.number] = [(target.cell.id, target.side) for target in wanted]
            for where, side in wanted:
                taken = Probe(cell=where.id, side=side, point="step", round=0, steps=1, duration_ns=(1,))
                groups.session.probes.setdefault(where, []).append(taken)
            say("where the time goes")
            self.now += self.explaining_s

        return probe

    def sweep(self, pool: Any, plan: Plan, gradient_bytes: object, say: Any) -> tuple[()]:
        self.swept.extend(plan.sweeps)
        say("all_reduce on 2 devices")
        return ()

    def counting(self, run: Observations, sessions: Any, chosen: Sequence[Cell], say: Any) -> Callable[[Groups], None]:
        def count(groups: Groups) -> None:
            self.counted.append((groups.session.number, tuple(chosen)))
            groups.session.counting_s = self.counting_s
            for side, calls in self.operators.items():
                operators = Count(what="operator", least=(calls,), most=(calls,))
                counters = Counters(made_with="torch 2.15.0", steps=3, counts=(operators,))
                run.counters |= {run.arms(each)[side]: counters for each in chosen}

        return count


class PretendedSessions:
    """Replaces `suite.run.session.Sessions`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.step_s: dict[Arm, float] = {}
        self.cold_s: dict[Arm, float] = {}

    def train_apart(self, arms: Sequence[Arm], train: Callable[[Groups], None]) -> None:
        self.world.apart.append(set(arms))
        groups = Groups(Session(-1))
        train(groups)
        self.world.run.lost |= groups.session.failures

    def left_s(self) -> float:
        return self.world.run.plan.config.budget.seconds - self.world.now

    def replan_blocks(self, training_s: float = 0.0) -> None:
        """The number of blocks is fixed."""

    def fit(self) -> int:
        self.world.fitted.append(self.world.run.sessions_lacking)
        return self.world.fits

    def run(self, asked: Next) -> None:
        world, run, number = self.world, self.world.run, len(self.world.run.sessions)
        units, untimed, afterwards = asked.units, asked.untimed, asked.afterwards
        world.shares_s.append(asked.share_s)
        self.step_s |= world.known_step_s
        arms = [timed for unit in units for timed in unit]
        if units:
            world.timed.append(set(arms))
        world.untimed.append(set(untimed))
        broken = world.broken.get(number, set()) & {*arms, *untimed}
        gone = broken | {a for a, b in world.shares.items() if b in broken}
        sign = (-1) ** number
        moved = {
            a: world.step_s.get(a, 1.0) * math.exp(sign * world.wobble * (a.side == "candidate"))
            for a in arms
            if a not in gone
        }
        blocks = 0 if not units else 1 if number == world.interrupted_in else BLOCKS
        session = add_session(run, [forth_and_back(moved)] * blocks)
        session.failures |= dict.fromkeys(broken, WorkerFailure("group", "rank 0: gone"))
        if number == world.interrupted_in:
            raise KeyboardInterrupt
        for act in afterwards:
            act(Groups(session))
        cost_s = world.session_s[min(number, len(world.session_s) - 1)]
        session.wall_s = cost_s + session.explaining_s
        world.now += cost_s
        if number == world.discarded_in and not run.discarded:
            run.discarded.append(run.sessions.pop())


class PretendedSides:
    """Replaces `suite.base.sides.Sides`; none of its workers starts."""

    def __init__(self, world: World) -> None:
        self.world, self.pools, self.forks = world, {"candidate": None}, True
        self.loading_s, self.next_load_s = 2.0, world.next_load_s

    def __enter__(self) -> PretendedSides:
        return self

    def __exit__(self, *_: object) -> None: ...

    def add(self, side: Side, base: Base) -> tuple[str, ...]:
        if side in self.world.not_there:
            raise CheckoutError(f"base {base.label}: it cannot be checked out")
        return ()

    def ask(self, *_: object, **__: object) -> None:
        raise WorkerFailure("helper", "the launcher did not start")

    def dismiss(self) -> None: ...

    wait_for_templates = renew = dismiss
