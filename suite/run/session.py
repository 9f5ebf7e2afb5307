"""One session: fresh worker processes for every arm, a warm-up, interleaved blocks, and the end of those processes.

An arm that fails is taken out and the others go on; only the cells that need it are lost. A session whose launcher ends
does not count (docs/adr/0005).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from suite.base.sides import SidePool
from suite.plan.cells import Arm, Side, short
from suite.plan.scripts import divided_twice
from suite.processes.failure import LauncherEnded, WorkerFailure, repeated
from suite.processes.group import START_TIMEOUT_S, dismiss
from suite.processes.jobs import Connected, Parameters, SetUp, Timed
from suite.records import counters, record
from suite.room.conditions import Conditions, disturbed
from suite.room.meter import Meter
from suite.room.quiet import available_cores
from suite.run import blocks
from suite.run.groups import Caches, Groups, capacity_lines, slow_start
from suite.run.observations import Observations, Session
from suite.run.timer import WINDOW_S, Subject, Timer, hang_timeout_s, taken_s, timing, whole_turns

KEPT = 0.9  # of a session's share of the budget, until its last block ends: the rest is for what comes after it
# A group's name is in its workers' environment, and in their arguments where torch's agent starts them. A length drawn
# for every session turns what these do to a memory layout (Mytkowicz et al. 2009) into spread between sessions, which a
# verdict allows for; without it they could favour one side in all sessions of a run.
MOST_PADDING = 64
MAX_STEPS = 200
AT_ONCE = 8  # groups that take their first steps at the same time
MEMORY_SHARE = 0.5  # of a GPU for these steps: contexts, parameters and data sets of all groups are there as well
CLOSE_TIMEOUT_S = 60.0
CLEAN_TRIES = 2  # windows of one length, before a shorter one is tried
BLOCKS_IN_TURN = 4  # of a session whose groups are there one after the other, and which no time of the others plans
IN_TURNS = (
    "candidate, base and world sizes do not fit into memory together: sessions start them one after the other, which "
    "takes longer, and nothing is taken apart, counted or trained"
)
MOST_UNCLEAN = 50  # windows of a script in a session that held an evaluation or a checkpoint, and are taken again

Say = Callable[[str], None]


class NoRoom(Exception):
    """The groups of workers of a session do not fit into memory together."""


@dataclass(frozen=True)
class Next:
    """A session to come.

    Attributes:
        units: arms that are timed in blocks; those of one unit next to each other.
        untimed: more arms to start, for what comes afterwards.
        afterwards: called with the live groups when all blocks are timed, so that nothing disturbs the timing.
        share_s: of the budget for it; there may be more blocks than planned in it. 0 for no more.
    """

    units: Sequence[tuple[Arm, ...]]
    untimed: Sequence[Arm] = ()
    afterwards: Sequence[Callable[[Groups], None]] = ()
    share_s: float = 0.0


class Sessions:
    """Runs sessions one after the other, and adds them to the run's observations.

    They have an equal number of blocks, and more where fewer arms are left and the time allows it.
    """

    def __init__(
        self,
        run: Observations,
        pools: Mapping[Side, SidePool],
        rng: random.Random,
        meter: Meter,
        left_s: Callable[[], float],
        say: Say,
    ) -> None:
        """Keep what every session needs; `left_s` returns how much of the budget is left."""
        self.step_s: dict[Arm, float] = {}
        self.cold_s: dict[Arm, float] = {}  # what an arm's first window takes of a session, whatever its clock shows
        self._step_bytes: dict[str, int] = {}  # the most that a step has reserved of a GPU, by workload
        self._run, self._pools, self._rng = run, pools, rng
        self._meter, self.left_s, self._say, self._clock = meter, left_s, say, run.plan.clock
        self._blocks, self._training_s = 0, 0.0
        self._caches = Caches()
        self._in_turns = False  # whether there is one group of workers at a time

    def run(self, asked: Next) -> None:
        """Run one session, and add what it measured to the run, also when it is interrupted.

        One whose launcher has ended is added to `Observations.discarded` instead, and leaves neither times nor nets.

        Raises:
            ValueError: a container has no memory for the processes of the first session.
        """
        started = datetime.now(UTC).isoformat(timespec="seconds")
        session = Session(len(self._run.sessions), started)
        start = self._clock()
        groups, self._caches = Groups(session), Caches()
        kept, memory, nets = self._run.sessions, dict(self._run.memory), len(self._run.accuracies)
        timed = list(dict.fromkeys(arm for unit in asked.units for arm in unit))
        needed = list(dict.fromkeys((*timed, *asked.untimed)))
        try:
            self._wait_for_templates(session)
            if not self._run.sessions and not self._run.discarded:
                self._check_capacity(needed)
            end_s = self._clock() + KEPT * (asked.share_s - max(session.loading_s, session.waiting_s))
            self._measure(groups, asked.units, needed, end_s)
            for act in () if self._in_turns else asked.afterwards:
                session.wall_s = self._clock() - start
                act(groups)
            self._close(groups, timed)
            dismiss(side.pool for side in self._pools.values())
        except LauncherEnded:
            kept, self._run.memory = self._run.discarded, memory
            del self._run.accuracies[nets:]
            dismiss(side.pool for side in self._pools.values())
        finally:  # where it was interrupted, the pools end what is left
            session.wall_s = self._clock() - start
            kept.append(session)

    def train_apart(self, arms: Sequence[Arm], train: Callable[[Groups], None]) -> None:
        """Start the processes of these arms once more, to train nets when all timing is over.

        An arm that fails while it trains is lost. One whose processes do not start keeps what it has.
        """
        repeated(partial(self._train_apart, arms, train))

    def _train_apart(self, arms: Sequence[Arm], train: Callable[[Groups], None]) -> None:
        groups, nets, not_started = Groups(Session(len(self._run.sessions))), len(self._run.accuracies), set[Arm]()
        try:
            self._start(groups, list(arms), "training")
            not_started = set(groups.session.failures)
            train(groups)
        except LauncherEnded:
            del self._run.accuracies[nets:]
            raise
        finally:
            failures = groups.session.failures.items()
            self._run.lost |= {arm: failure for arm, failure in failures if arm not in not_started}
            dismiss(side.pool for side in self._pools.values())

    def replan_blocks(self, training_s: float = 0.0) -> None:
        """Let the next session choose the number of blocks, because other arms are timed from now on.

        Args:
            training_s: of the rest of the budget, which are not for timing.
        """
        self._blocks, self._training_s = 0, training_s

    def fit(self) -> int:
        """Choose anew how many blocks the sessions to come have, by what the last one took.

        Returns:
            How many sessions fit then; 0 where those that a decision lacks do not, even with the fewest blocks, and the
            number of blocks stays as it is.
        """
        last, left_s = self._run.sessions[-1], KEPT * self.left_s()
        timed_s = last.timing_s - last.filling_s
        start_s, round_s = last.usual_s - timed_s, timed_s / (2 * max(1, self._blocks))
        if not timed_s or self._run.sessions_lacking * (start_s + 2 * blocks.LEAST * round_s) > left_s:
            return 0
        self._blocks = self._run.block_count(start_s, round_s, left_s, spare=0.0)
        return int(left_s / (start_s + 2 * self._blocks * round_s))

    def timeout_s(self, arm: Arm, steps: int) -> float:
        """Return after how many seconds an arm's `steps` count as hung."""
        return hang_timeout_s(steps * self.step_s[arm])

    @property
    def _kind(self) -> str:
        return self._run.plan.config.devices.kind

    def _wait_for_templates(self, session: Session) -> None:
        begun, pools = self._clock(), [side.pool for side in self._pools.values()]
        for pool in pools:
            pool.wait_for_templates(self._run.plan.deadline_s(START_TIMEOUT_S))
        session.waiting_s = self._clock() - begun
        session.loading_s = max(pool.launchers.loading_s for pool in pools)

    def _check_capacity(self, arms: Sequence[Arm]) -> None:
        """Say what may get short where these arms are started, as a part of the plan; raises as `run`."""
        forked = any(side.pool.forks for side in self._pools.values())
        self._note(capacity_lines(self._run, arms, forked=forked))

    def _note(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._run.notes.append(line)
            self._say(line)

    def _measure(self, groups: Groups, units: Sequence[tuple[Arm, ...]], arms: list[Arm], end_s: float) -> None:
        """Start all arms and time them, or one group of workers after the other where all do not fit into memory."""
        groups.session.starting_s = groups.session.loading_s
        if not self._in_turns:
            try:
                self._start_and_time(groups, units, arms, end_s)
                return
            except NoRoom:
                self._in_turns = True
                self._note([IN_TURNS])
                groups.session.failures.clear()
                self._dismiss(groups)
        turns: dict[tuple[Side, str, str, int], list[Arm]] = {}
        timed = {arm for unit in units for arm in unit}
        for arm in sorted(timed, key=lambda arm: arm.side, reverse=bool(groups.session.number % 2)):
            turns.setdefault(arm.processes, []).append(arm)
        for turn in sorted(turns, key=lambda processes: processes[1:]):  # the sides of a cell follow each other
            self._start_and_time(groups, units, turns[turn], 0.0)
            self._close(groups, turns[turn])
            self._dismiss(groups)
        if any(failure.lacks_memory for failure in groups.session.failures.values()):
            self._in_turns = False  # it does not fit alone either, and the others may fit together

    def _start_and_time(self, groups: Groups, units: Sequence[tuple[Arm, ...]], arms: list[Arm], end_s: float) -> None:
        """Start arms and time those of `units` in blocks, until `end_s` of the clock or for as many as planned.

        Raises:
            NoRoom: several groups of workers were started, and one of them got no memory.
        """
        session = groups.session
        begun = self._clock()
        self._start(groups, arms, f"session {session.number + 1}")
        self._take_first_steps(groups)
        session.starting_s += self._clock() - begun
        self._note(slow_start(self._run, session, arms))
        now = [kept for unit in units if (kept := tuple(arm for arm in unit if arm in arms))]
        timed = list(dict.fromkeys(arm for unit in now for arm in unit))
        warm = self._clock()
        self._warm_up(groups, timed)
        session.warming_s += self._clock() - warm
        several = len({arm.processes for arm in arms}) > 1
        if several and any(failure.lacks_memory for failure in session.failures.values()):
            raise NoRoom
        self._meter.watch()
        if not self._blocks and timed:
            self._blocks = BLOCKS_IN_TURN if self._in_turns else self._plan_blocks(groups, session.starting_s)
        self._time(groups, now, end_s)
        self._check_parameters(groups, timed)
        self._note(self._divided_twice(timed))
        self._ask_transports(groups, timed)

    def _dismiss(self, groups: Groups) -> None:
        groups.by_arm.clear()
        dismiss(side.pool for side in self._pools.values())

    def _start(self, groups: Groups, arms: list[Arm], what: str) -> None:
        shared: dict[tuple[Side, str, str, int], list[Arm]] = {}
        for arm in arms:
            shared.setdefault(arm.processes, []).append(arm)
        self._say(f"{what}: starting {len(shared)} group(s) of workers")
        # The order is drawn, so that no arm always starts first or last.
        for number, (key, sharing) in enumerate(self._rng.sample(list(shared.items()), len(shared))):
            name = f"{groups.session.number}-{number}-{key[0]}-{short(sharing[0].trainer)}-{key[3]}"
            name += "_" * self._rng.randrange(MOST_PADDING)
            try:
                group = self._pools[sharing[0].side].launch(name, self._run.jobs[sharing[0]].size)
                group.start_timeout_s = self._run.plan.deadline_s(START_TIMEOUT_S)
                groups.by_arm |= dict.fromkeys(sharing, group)
            except WorkerFailure as failure:
                groups.session.failures[sharing[0]] = failure
        # All start at the same time, because importing torch is most of it, and nothing is timed yet.
        for turn in range(max(map(len, shared.values()))):
            now = [sharing[turn] for sharing in shared.values() if turn < len(sharing)]
            set_up = groups.request_at_once(now, SetUp, "setup", self._start_timeout_s, arm=self._run.jobs.__getitem__)
            for arm, answers in set_up.items():
                # A trainer may build another model in every session; the first one stands for all.
                self._run.gradient_bytes.setdefault(arm, answers[0].gradient_bytes)
                self._run.sample_flop.setdefault(arm, answers[0].sample_flop)
                self._note({answer.note for answer in answers} - {"", *self._run.notes})

    def _start_timeout_s(self, arm: Arm) -> float:
        return self._run.plan.deadline_s(START_TIMEOUT_S)

    def _take_first_steps(self, groups: Groups) -> None:
        """Let every arm take a step before anything is timed, those of several groups at the same time.

        On GPUs a process loads libraries and kernels in its first steps, which is seconds of work of one core. Ranks on
        CPUs are pinned to the same cores, so that they would only wait for each other.
        """
        if self._kind == "cpu":
            return
        drawn = self._rng.sample(list(groups.by_arm), len(groups.by_arm))
        waiting = sorted(drawn, key=lambda arm: arm.world_size)  # on one device first, where steps need the most memory
        first = {group: arm for arm, group in reversed([(arm, groups.by_arm[arm]) for arm in waiting])}
        waiting.sort(key=lambda arm: arm is not first[groups.by_arm[arm]])  # a process's second arm takes less time
        while waiting := [arm for arm in waiting if arm in groups.by_arm]:
            self._say(f"session {groups.session.number + 1}: first steps of {len(waiting)} arm(s)")
            now = self._at_once(groups, waiting)
            stepped = groups.request_at_once(now, Timed, "window", self._run.plan.first_step_s, steps=lambda _: 1)
            for arm, answers in stepped.items():
                held = counters.most_reserved(counters.largest((), [answer.memory for answer in answers]))
                self._step_bytes[arm.workload] = max(held, self._step_bytes.get(arm.workload, 0))
            waiting = [arm for arm in waiting if arm not in now]

    def _at_once(self, groups: Groups, waiting: Sequence[Arm]) -> list[Arm]:
        """Return arms whose first steps may be taken now: of different groups, with a core a rank, and with memory.

        What a step of a workload needs is known when one of its arms has stepped alone. Where the memory of the GPUs is
        not known, every arm steps alone.
        """
        jobs, known, now = self._run.jobs, self._step_bytes, list(waiting[:1])
        room = MEMORY_SHARE * min((card.memory_bytes or 0 for card in self._run.plan.machine.cards), default=0)
        for arm in waiting[1:]:
            more = [*now, arm]
            apart = len({id(groups.by_arm[each]) for each in more}) == len(more) <= AT_ONCE
            cores = sum(jobs[each].size for each in more) <= len(available_cores())
            if apart and cores and math.fsum(known.get(each.workload, math.inf) for each in more) <= room:
                now = more
        return now

    def _warm_up(self, groups: Groups, timed: Sequence[Arm]) -> None:
        known, new = self._run.steps, dict[Arm, int]()
        for arm in self._rng.sample(timed, len(timed)):
            subject = self._subject(partial(self._first_windows, groups, arm), arm)
            warm = Timer(self._kind, self._clock).warm(subject)
            if warm is not None and arm not in known:
                self.step_s[arm], self.cold_s[arm] = warm
                steps = min(MAX_STEPS, whole_turns(math.ceil(WINDOW_S / warm.step_s), subject.loaders))
                new[arm] = self._clean_steps(groups, arm, steps) if arm.runs_script else steps
        # Arms that are compared run windows of equal work: as many steps as a window of the slowest of them has. An arm
        # that was timed before never changes its own.
        known |= {arm: min(_of_cell(known, arm) or _of_cell(new, arm)) for arm in new}

    def _clean_steps(self, groups: Groups, arm: Arm, steps: int) -> int:
        """Return of how many updates, at most these, windows of a script exist that hold nothing but steps."""
        timeout_s = partial(self.timeout_s, arm)
        while steps > 1 and arm in groups.by_arm:
            told = {"name": arm.id, "steps": steps}
            tries = [groups.request(arm, Timed, "window", timeout_s(steps), **told) or () for _ in range(CLEAN_TRIES)]
            if any(not any(answer.unclean for answer in answers) for answers in tries):
                break
            steps //= 2
        return steps

    def _subject(self, window: Callable[[int, int, float], record.Timing | None], arm: Arm) -> Subject:
        plan = self._run.plan
        return Subject(window, plan.first_step_s(arm), plan.loaders(arm.workload), self.step_s.get(arm, 0.0))

    def _first_windows(
        self, groups: Groups, arm: Arm, steps: int, lead_in: int, timeout_s: float
    ) -> record.Timing | None:
        answers = groups.request(arm, Timed, "window", timeout_s, name=arm.id, steps=steps, lead_in=lead_in)
        if answers is None:
            return None
        names = self._run.plan.config.devices.names[: arm.world_size]
        self._caches.note(groups.by_arm[arm], names, answers)
        return timing(answers)

    def _plan_blocks(self, groups: Groups, starting_s: float) -> int:
        """Return how many blocks every session has, from what the first one shows.

        Args:
            groups: of the session.
            starting_s: of it, until all processes have started, with an equal share of loading templates.
        """
        timed = [arm for arm in groups.by_arm if arm in self.step_s]
        round_s = sum(self._taken_s(arm) for arm in timed) or WINDOW_S
        start_s = starting_s + sum(self.cold_s[arm] for arm in timed)
        return self._run.block_count(start_s, round_s, self.left_s() + start_s - self._training_s)

    def _taken_s(self, arm: Arm) -> float:
        """Return how long a window of an arm takes, with what precedes it."""
        return taken_s(self._kind, self._run.steps[arm], self.step_s[arm], self._run.plan.loaders(arm.workload))

    def _time(self, groups: Groups, units: Sequence[tuple[Arm, ...]], end_s: float) -> None:
        """Time as many blocks as planned, and more while another one is likely to end before `end_s` of the clock.

        The clock alone decides that, and never what was seen of the arms.
        """
        start = more = self._clock()
        before_s = groups.session.timing_s  # of groups that were timed before
        timer = Timer(self._kind)
        for number in range(blocks.MOST if units else 0):
            now = self._clock()
            if number == self._blocks:
                more = now
            if not groups.by_arm or (number >= self._blocks and now + (now - start) / max(1, number) > end_s):
                break
            of = f" of {self._blocks}" if number < self._blocks else " while there is time"
            self._say(f"session {groups.session.number + 1}: block {number + 1}{of}")
            before = self._meter.read()
            for arm in blocks.block(units, self._rng):
                if arm not in groups.by_arm:
                    continue
                subject = self._subject(partial(self._window, groups, arm), arm)
                if tries := timer.windows(subject, self._run.steps[arm], self.step_s[arm]):
                    self._meter.worked(self._run.plan.config.devices.names[: arm.world_size])
                    first = tries[0] if len(tries) > 1 else None
                    groups.session.windows.append(
                        record.Window(**dict(tries[-1]), arm=arm.id, block=number, first=first)
                    )
            _note_conditions(groups.session, number, self._meter.since(before))
            groups.session.filling_s = self._clock() - more if number >= self._blocks else 0.0
            groups.session.timing_s = before_s + self._clock() - start

    def _window(self, groups: Groups, arm: Arm, steps: int, lead_in: int, timeout_s: float) -> record.Timing | None:
        told: dict[str, object] = {"name": arm.id, "steps": steps, "lead_in": lead_in}
        told |= {"keeps": True} if self._caches.fit else {}
        answers: list[Timed] | None = []
        while answers is not None and groups.session.unclean.get(arm, 0) <= MOST_UNCLEAN:
            answers = groups.request(arm, Timed, "window", timeout_s, **told)
            if answers is None or not any(answer.unclean for answer in answers):
                break
            groups.session.unclean[arm] = groups.session.unclean.get(arm, 0) + 1
        if not answers:
            return None
        held = [answer.memory for answer in answers]
        self._run.memory[arm] = counters.largest(self._run.memory.get(arm, ()), held)
        return timing(answers)

    def _check_parameters(self, groups: Groups, timed: Sequence[Arm]) -> None:
        """Take out every timed arm whose parameters are not finite; a trainer may return no loss that shows it."""
        for arm in [arm for arm in timed if arm in groups.by_arm]:
            answers = groups.request(arm, Parameters, "parameters", self.timeout_s(arm, 1), name=arm.id) or []
            for answer in answers[:1]:
                self._run.work.setdefault(arm, (answer.rows, answer.passes))
            broken = [(rank, answer.not_finite) for rank, answer in enumerate(answers) if answer.not_finite]
            if broken:
                rank, parameter = broken[0]
                cause = f"rank {rank}: parameter {parameter!r} of {arm.trainer} is not finite after the session's steps"
                remedy = self._run.jobs[arm].dataset.remedy
                groups.session.failures[arm] = WorkerFailure(arm.side, f"{cause}; {remedy}")
                del groups.by_arm[arm]

    def _divided_twice(self, timed: Sequence[Arm]) -> Iterator[str]:
        """Yield what a user has to know of scripts that divide their work as the command does already."""
        work = self._run.work
        for arm in timed:
            script = self._run.plan.workload(arm.workload).script
            if script and arm.side == "candidate" and arm.world_size > 1 and arm in work and arm.on_one in work:
                note = divided_twice(script, arm.mode, arm.world_size, work[arm], work[arm.on_one])
                if note and note not in self._run.notes:
                    yield note

    def _ask_transports(self, groups: Groups, timed: Sequence[Arm]) -> None:
        """Ask once how NCCL connected the GPUs of an arm; its first step has made all connections."""
        if self._kind == "cpu":
            return
        several = [arm for arm in timed if arm.world_size > 1 and arm in groups.by_arm]
        for arm in [arm for arm in several if arm not in self._run.transports]:
            answers = groups.request(arm, Connected, "connections", self.timeout_s(arm, 1))
            if answers is not None:
                said = dict.fromkeys(transport for answer in answers for transport in answer.transports)
                self._run.transports[arm] = tuple(said)

    def _close(self, groups: Groups, timed: Sequence[Arm]) -> None:
        """Let every timed trainer end what it has started; one that cannot has failed."""
        for arm in timed:
            answers = groups.request(arm, dict, "close", CLOSE_TIMEOUT_S, name=arm.id) or ()
            self._note({answer["note"] for answer in answers if answer.get("note")} - {*self._run.notes})


def _note_conditions(session: Session, block: int, conditions: Conditions) -> None:
    """Note under which conditions a block was timed; one that another group of workers timed too was disturbed once."""
    if block == len(session.conditions):
        session.conditions.append(conditions)
    elif disturbed(conditions):
        session.conditions[block] = conditions


def _of_cell(steps: Mapping[Arm, int], arm: Arm) -> list[int]:
    """Return the steps of the arms that an arm is compared with, and its own."""
    cell = arm.workload, arm.mode, arm.world_size
    return [count for other, count in steps.items() if (other.workload, other.mode, other.world_size) == cell]
