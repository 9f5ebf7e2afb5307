"""One session: fresh worker processes for every arm, a warm-up, interleaved blocks, and the end of those processes.

An arm that fails is taken out and the others go on; only the cells that need it are lost.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from suite.plan.cells import Arm, Side, short
from suite.processes.channel import Message
from suite.processes.failure import WorkerFailure
from suite.processes.group import Group
from suite.processes.pool import Pool
from suite.records import record
from suite.room.conditions import Conditions, disturbed
from suite.room.meter import Meter
from suite.run import blocks
from suite.verdict import FIRST_LOOK

WINDOW_S = 0.12  # long against the clock's and the barrier's own microseconds, short against a machine's moods
# Timing gets this share of what starting the processes takes. A session's spread is mostly that of its rounds (7 % each
# at two ranks on a shared machine, against 1 % or less between sessions), which asks for long sessions; a decision
# needs three of them, which asks for short ones where the budget holds few. docs/verdict.md has the reckoning.
MEASURE_SHARE = 0.45
MEASURE_SHARE_OF_MANY = 1.0
MANY_SESSIONS = 10
MAX_BLOCKS = 30
SHORT_STEP_S = 1.0  # a longer one is warm after its first time
MAX_STEPS = 200
FIRST_STEP_TIMEOUT_S = 120.0  # lazily built kernels, compilation, the first collective
PATIENCE = 20  # times what a command took before

Say = Callable[[str], None]


@dataclass
class Session:
    """What one session brought.

    Attributes:
        windows: in the order they were timed.
        conditions: of each block.
        probes: what was timed afterwards, to say where the time goes.
        failures: the arms that were lost, with reasons.
    """

    number: int
    started_utc: str = ""
    wall_s: float = 0.0
    windows: list[record.Window] = field(default_factory=list)
    conditions: list[Conditions] = field(default_factory=list)
    probes: list[record.Probe] = field(default_factory=list)
    failures: dict[Arm, WorkerFailure] = field(default_factory=dict)

    @property
    def left_out(self) -> set[int]:
        """The disturbed blocks, marked by their conditions alone and never by their times.

        Where most of a session was disturbed, noise is what this machine has to offer, and every block counts.
        """
        marked = {number for number, conditions in enumerate(self.conditions) if disturbed(conditions)}
        return marked if 2 * len(marked) <= len(self.conditions) else set()

    def to_record(self) -> record.Session:
        """The part of the record that keeps it."""
        return record.Session(
            number=self.number,
            started_utc=self.started_utc,
            wall_s=round(self.wall_s, 3),
            windows=tuple(self.windows),
            conditions=tuple(self.conditions),
            left_out=tuple(sorted(self.left_out)),
            probes=tuple(self.probes),
        )


@dataclass
class Crew:
    """The living groups of a session, by arm. A trainer's modes at one world size share their processes."""

    session: Session
    groups: dict[Arm, Group] = field(default_factory=dict)

    def attempt(self, arm: Arm, act: Callable[[Group], Any]) -> Any:
        """Do something with an arm's group; None when the group is not there any more, or breaks over it.

        A group that breaks takes the arms it shares along for this session, but only the one that broke it is lost for
        the run.
        """
        if arm not in self.groups:
            return None
        try:
            return act(self.groups[arm])
        except WorkerFailure as failure:
            self.session.failures[arm] = failure
            self.drop(self.groups[arm])
            return None

    def drop(self, broken: Group) -> None:
        """Do without a group that has broken, and with it without all arms that share it."""
        self.groups = {arm: group for arm, group in self.groups.items() if group is not broken}

    def request(self, arm: Arm, command: str, timeout_s: float, /, **arguments: object) -> list[Message] | None:
        """Ask an arm's ranks; their answers, or None as `attempt`."""
        answers: list[Message] | None = self.attempt(arm, lambda group: group.request(command, timeout_s, **arguments))
        return answers

    def close(self) -> None:
        """Let all groups go; they leave at the same time."""
        for group in set(self.groups.values()):
            group.post("exit")
        for group in set(self.groups.values()):
            group.close()
        self.groups.clear()

    def kill(self) -> None:
        """End what is left, at once."""
        for group in set(self.groups.values()):
            group.kill()
        self.groups.clear()


class Sessions:
    """Runs sessions one after the other, with what stays the same in all of them: steps a window, blocks a session."""

    def __init__(
        self,
        pools: Mapping[Side, Pool],
        orders: Mapping[Arm, dict[str, Any]],
        rng: random.Random,
        meter: Meter,
        left_s: Callable[[], float],
        say: Say,
    ) -> None:
        """Prepare.

        Args:
            pools: where the processes of each side come from.
            orders: for each arm what its workers are told (see `suite.plan.cells.describe`).
            rng: draws the order of arms.
            meter: reads the machine between blocks.
            left_s: how much of the run's budget is left.
            say: is told what is going on.
        """
        self.steps: dict[Arm, int] = {}
        self.step_s: dict[Arm, float] = {}
        self.gradient_bytes: dict[Arm, int] = {}
        self._pools, self._orders, self._rng = pools, orders, rng
        self._meter, self.left_s, self._say = meter, left_s, say
        self.current = Session(-1)
        self._blocks = 0

    def run(
        self,
        units: Sequence[tuple[Arm, ...]],
        beside: Sequence[Arm] = (),
        afterwards: Sequence[Callable[[Crew], None]] = (),
    ) -> None:
        """One session over the arms of `units`; what it brought is `current`, also when it is interrupted.

        Args:
            units: what is timed in blocks, and next to what.
            beside: other arms, set up for what comes afterwards.
            afterwards: called with the living groups when all blocks are timed; what they do disturbs no timing.
        """
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self.current = session = Session(self.current.number + 1, started)
        start = time.monotonic()
        crew = Crew(session)
        try:
            timed = list(dict.fromkeys(arm for unit in units for arm in unit))
            self._start(crew, list(dict.fromkeys((*timed, *beside))))
            self._warm_up(crew, timed)
            self._meter.watch()
            if not self._blocks and timed:
                self._blocks = self._plan_blocks(crew, time.monotonic() - start)
            self._time(crew, units)
            for act in afterwards:
                act(crew)
            crew.close()
        finally:
            crew.kill()  # what is still there: nothing, unless this was interrupted
            session.wall_s = time.monotonic() - start

    def plan_anew(self) -> None:
        """Let the next session choose its number of blocks: other arms are timed from now on."""
        self._blocks = 0

    def timeout_s(self, arm: Arm, steps: int) -> float:
        """How long an arm may take for so many steps before it counts as hung; the clock is not for slowness."""
        return max(20.0, PATIENCE * steps * self.step_s[arm])

    def _start(self, crew: Crew, arms: list[Arm]) -> None:
        shared: dict[tuple[str, str, str, int], list[Arm]] = {}
        for arm in arms:
            shared.setdefault((arm.side, arm.trainer, arm.workload, arm.world_size), []).append(arm)
        self._say(f"session {crew.session.number + 1}: starting {len(shared)} groups of workers")
        # The order is drawn, so that starting first or last is nobody's lasting advantage.
        for number, (key, sharing) in enumerate(self._rng.sample(list(shared.items()), len(shared))):
            name = f"{crew.session.number}-{number}-{key[0]}-{short(sharing[0].trainer)}-{key[3]}"
            try:
                group = self._pools[sharing[0].side].launch(name, processes(self._orders[sharing[0]]))
                crew.groups |= dict.fromkeys(sharing, group)
            except WorkerFailure as failure:
                crew.session.failures[sharing[0]] = failure
        # All start at the same time, because importing torch is most of it, and nothing is timed yet.
        for arm in arms:
            crew.attempt(arm, lambda group: group.wait_connected())
        for turn in range(max(map(len, shared.values()))):
            now = [sharing[turn] for sharing in shared.values() if turn < len(sharing)]
            for arm in now:
                crew.attempt(arm, _post_setup(arm, self._orders[arm]))
            for arm in now:
                answers = crew.attempt(arm, lambda group: group.collect("setup"))
                if answers is not None:
                    self.gradient_bytes[arm] = answers[0]["gradient_bytes"]
                    self._orders[arm]["compiler"] = answers[0]["compiler"]  # the next session's workers know it

    def _warm_up(self, crew: Crew, timed: Sequence[Arm]) -> None:
        known = set(self.steps)
        for arm in self._rng.sample(timed, len(timed)):
            step_s = self._step_s(crew, arm, 1)
            if step_s is not None and step_s < SHORT_STEP_S:
                step_s = self._step_s(crew, arm, 2)
            if step_s is not None and arm not in self.steps:
                self.step_s[arm] = step_s
                self.steps[arm] = min(MAX_STEPS, math.ceil(WINDOW_S / self.step_s[arm]))
        # Arms that are compared run windows of equal work, and an arm that was timed before never changes its own.
        for arm in set(self.steps) - known:
            twins = [twin for twin in self.steps if _same_cell(twin, arm)]
            self.steps[arm] = self.steps[next((twin for twin in twins if twin in known), twins[0])]

    def _step_s(self, crew: Crew, arm: Arm, steps: int) -> float | None:
        answers = crew.request(arm, "window", FIRST_STEP_TIMEOUT_S, name=arm.id, steps=steps)
        return None if answers is None else max(answer["duration_ns"] for answer in answers) / steps / 1e9

    def _plan_blocks(self, crew: Crew, start_s: float) -> int:
        """Blocks of every session of the run: timing balanced with starting, or fewer where the budget is short."""
        timed = [arm for arm in crew.groups if arm in self.step_s]
        block_s = sum(2 * self.steps[arm] * self.step_s[arm] for arm in timed) or WINDOW_S
        budget_s = self.left_s() + start_s
        many = budget_s >= MANY_SESSIONS * (1 + MEASURE_SHARE) * start_s
        wanted_s = (MEASURE_SHARE_OF_MANY if many else MEASURE_SHARE) * start_s
        return min(MAX_BLOCKS, max(1, round(min(wanted_s, budget_s / FIRST_LOOK - start_s) / block_s)))

    def _time(self, crew: Crew, units: Sequence[tuple[Arm, ...]]) -> None:
        for number in range(self._blocks if units and crew.groups else 0):
            self._say(f"session {crew.session.number + 1}: block {number + 1} of {self._blocks}")
            before = self._meter.read()
            for arm in blocks.block(units, self._rng):
                if arm not in crew.groups:
                    continue
                steps = self.steps[arm]
                answers = crew.request(arm, "window", self.timeout_s(arm, steps), name=arm.id, steps=steps)
                if answers is not None:
                    durations = tuple(int(answer["duration_ns"]) for answer in answers)
                    crew.session.windows.append(record.Window(arm=arm.id, block=number, duration_ns=durations))
            crew.session.conditions.append(self._meter.since(before))


def _post_setup(arm: Arm, order: dict[str, Any]) -> Callable[[Group], None]:
    return lambda group: group.post("setup", name=arm.id, arm=order)


def processes(order: Mapping[str, Any]) -> int:
    """How many processes an arm has: one a device, or the one that drives all of them."""
    return 1 if order["processes"] == "one" else len(order["devices"])


def _same_cell(a: Arm, b: Arm) -> bool:
    return (a.workload, a.mode, a.world_size) == (b.workload, b.mode, b.world_size)
