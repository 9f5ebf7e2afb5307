"""Where the time went: times the diagnostic variants of cells with a session's groups, after its blocks.

Nothing that is judged is timed here. A diagnostic variant that fails costs its own bar. A candidate that fails in a
real training step (`Variant.training`) is lost, as it is in a block. `suite.verdict.diagnose` defines the variants and
makes bars of their times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from suite.plan import cells
from suite.plan.cells import Arm, Cell, Side
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Probed
from suite.records import record
from suite.records.record import Missing
from suite.room.conditions import LIMIT_CORES
from suite.run import accuracy, judging
from suite.run.groups import Groups
from suite.run.observations import Observations, Session
from suite.run.session import CLEAN_TRIES, Say, Sessions
from suite.run.timer import LEAD_IN_S, Subject, Timer, taken_s, timing, whole_turns
from suite.run.variants import VARIANTS, Target, points_of
from suite.verdict import explain
from suite.verdict.diagnose import OWN_WORK, Growth, Point, Rounds, Waterfall, growth, waterfall
from suite.verdict.explain import About, against_base, sentence
from suite.verdict.outcome import ALPHA_WARN, WORTH
from suite.verdict.spread import FEWEST

SESSIONS = 12  # take a cell apart; without a base, the quick profile has fewer, and all of them do
# For a cell that looks slower. An obvious FAIL is decided with three, from which parts pool how sessions differ.
OF_A_SLOWER_CELL = {"quick": 3, "full": SESSIONS}
# Of a session for each side, shared by its cells; all have a round forwards and one backwards. More rounds show a part
# better: they are most of its noise.
SESSION_S = {"quick": 5.0, "full": 10.0}
MOST_CELLS = 3  # with a base in the run: the slowest ones, so that a session does not become many times longer

LONG_STEP_S = 1.0  # the variants of a shorter step have windows of several steps, and how many follows from a warm one
SHARE = 0.1  # of the budget, in a session with a base: for the waterfalls of a cell
SIDES: tuple[Side, ...] = ("candidate", "base")


def targets(run: Observations, chosen: Iterable[Cell], sides: Sequence[Side]) -> list[Target]:
    """Return the waterfalls that these cells can have; none where the user wants none."""
    if not run.plan.config.explain:
        return []
    shared = run.plan.config.devices.oversubscribed
    several = [c for c in chosen if c.world_size > 1 and not shared(c.world_size)]
    return [Target(cell, side) for cell in several for side in sides if side in run.arms(cell)]


def of_slower(run: Observations, sessions: Sessions) -> list[Target]:
    """Return the waterfalls of candidate and base that the next session has time for, of cells that look slower so far.

    They are timed when the blocks of the next session are over, so that what grew is known when a cell fails. The full
    profile takes the slowest cells apart whether they look slower or not. Why the budget has no time is noted.

    Args:
        run, sessions: of the campaign.
    """
    config = run.plan.config
    if not run.comparison.bases:
        return []
    behind = {cell: judging.surplus(run, cell) for cell in run.comparison.judged}
    slower = [
        cell for cell in sorted(behind, key=lambda cell: -behind[cell]) if behind[cell] or config.profile == "full"
    ]
    last = [made[-1] for cell in slower if (made := targets(run, [cell], SIDES))]
    lacking = [target.cell for target in last if _times(run, target) < OF_A_SLOWER_CELL[config.profile]]
    wanted = targets(run, lacking[:MOST_CELLS], SIDES)
    if wanted and config.budget.fixed and not config.calibrate and not _fits(run, wanted, sessions.left_s()):
        why = "the budget has no more time than the decision needs; raise --scaling-budget"
        run.unexplained |= dict.fromkeys((target.cell for target in wanted), why)
        return []
    costs_s = {cell: _needed_s(run, sessions, sides) for cell, sides in _by_cell(run, wanted).items()}
    too_long = {cell: cost_s for cell, cost_s in costs_s.items() if cost_s > SHARE * config.budget.seconds}
    run.late_s |= too_long
    return [target for target in wanted if target.cell not in too_long]


def _fits(run: Observations, wanted: Sequence[Target], left_s: float) -> bool:
    """Return whether the rest of a user's budget has the time to decide cells and to take them apart (docs/adr/0004).

    It must have it for the sessions that the decision seems to lack, and for all those that a waterfall lacks before
    parts can be named. These take half of it at most: before the third session, nobody knows how sessions scatter.
    """
    deciding = max(run.sessions_lacking, *(judging.lacking(run, target.cell) for target in wanted))
    explaining_s = added_s(run) * max(1, *(FEWEST - _times(run, target) for target in wanted))
    return left_s >= explaining_s + max(explaining_s, deciding * run.session_s)


def added_s(run: Observations) -> float:
    """Return the seconds that taking cells apart adds to a session: as planned, or as in the last one if more.

    The processes that only waterfalls need are started and warmed up as well, for about as long as the rounds take.
    """
    alone_s = [session.usual_s for session in run.sessions if session.windows and not session.explaining_s]
    seen_s = [
        session.usual_s + session.explaining_s - (alone_s[-1] if alone_s else session.usual_s)
        for session in run.sessions
        if session.explaining_s
    ]
    return max([2 * len(SIDES) * SESSION_S[run.plan.config.profile], *seen_s[-1:]])


def _times(run: Observations, target: Target) -> int:
    """Return how many sessions have taken a cell apart."""
    return sum(bool(_rounds(session, target.cell, target.side)) for session in run.sessions)


def arms(run: Observations, wanted: Iterable[Target]) -> list[Arm]:
    """Return every arm that these waterfalls need."""
    return list(dict.fromkeys(arm for target in wanted for arm in target.arms(run).values()))


def carried(run: Observations, sessions: Sessions, wanted: Sequence[Target], session_s: float) -> list[Target]:
    """Return the waterfalls that the sessions of figures seem to have time for; it is noted of the cells of the others.

    Those of the largest world sizes come first. Both they and the sessions may take longer than is known here.
    """
    by_cell, spent_s, allowed_s = _by_cell(run, wanted), 0.0, _allowed_s(run, sessions, 0, session_s)
    for number, (cell, sides) in enumerate(by_cell.items()):
        needed_s = _needed_s(run, sessions, sides)
        if number and spent_s + needed_s > allowed_s:
            run.late_s[cell] = needed_s
        else:
            spent_s += needed_s
    return [target for target in wanted if target.cell not in run.late_s and target.cell not in run.unexplained]


def left_out(run: Observations) -> list[Cell]:
    """Return the cells that are not taken apart for lack of time, the smallest world sizes first."""
    return sorted((cell for cell in run.late_s if not _apart(run, cell)), key=lambda cell: cell.world_size)


def needed_s(run: Observations, sessions: Sessions, wanted: Iterable[Target]) -> float:
    """Return the least seconds that these waterfalls take in a session."""
    return math.fsum(_needed_s(run, sessions, sides) for sides in _by_cell(run, wanted).values())


def _by_cell(run: Observations, wanted: Iterable[Target]) -> dict[Cell, list[Target]]:
    """Return the waterfalls of each cell that can have them: of slower cells with a base's, then of the largest first.

    Every session of a run has the same order, because a cell that is taken apart in one session alone shows nothing.
    """
    by_cell: dict[Cell, list[Target]] = {}
    for target in wanted:
        by_role = target.arms(run)
        if by_role["own"] not in run.lost and by_role["one"] not in run.lost:
            by_cell.setdefault(target.cell, []).append(target)

    def order(cell: Cell) -> tuple[int, float]:
        return (-cell.world_size, random.Random(f"{run.plan.seed} {cell.id}").random())

    slower = [cell for cell, sides in by_cell.items() if len(sides) > 1]
    others = sorted(by_cell.keys() - slower, key=order)
    return {cell: by_cell[cell] for cell in (*slower, *others)}


def _allowed_s(run: Observations, sessions: Sessions, number: int, session_s: float = 0.0) -> float:
    """Return how many seconds the waterfalls of a session may take.

    The sessions that take place whatever a profile's budget is share what it leaves, stretched, beside their timing and
    what is kept for training. Where the user set the budget, the first session may have as much as that.

    Args:
        run, sessions: of the campaign.
        number: of the session.
        session_s: that it takes without its waterfalls.
    """
    config, left_s = run.plan.config, sessions.left_s()
    if run.comparison.bases:
        return min(left_s, MOST_CELLS * SHARE * config.budget.seconds)
    if number >= config.budget.least_sessions:
        return left_s
    if config.budget.fixed:
        return config.budget.seconds
    training_s = accuracy.KEPT_SHARE * config.budget.seconds if number == 0 and accuracy.trained(run) else 0.0
    return (run.plan.beside_s(left_s, session_s, number) - training_s) / (config.budget.least_sessions - number)


def _needed_s(run: Observations, sessions: Sessions, targets: Iterable[Target]) -> float:
    """Return the least seconds that the variants of these waterfalls take in a session: to warm up, and two rounds."""
    needed_s = 0.0
    for target in targets:
        step_s = sessions.step_s.get(target.arms(run)["own"]) or LEAD_IN_S
        for point in points_of(run, target):
            loaders = target.loaders(run, point)
            timed_s = max(target.window_s(run, point), whole_turns(1, loaders) * step_s)
            needed_s += 3 * (timed_s + taken_s(run.plan.config.devices.kind, 0, step_s, loaders))
    return needed_s


def probing(run: Observations, sessions: Sessions, wanted: Sequence[Target], say: Say) -> Callable[[Groups], None]:
    """Return a function that times the variants of every target with a session's groups.

    Cells that do not fit into the time for it (`_allowed_s`) are left out and noted, those of the smallest world sizes
    first. By how much earlier ones took longer than the least that they could is known of the next. In the sessions
    that take place whatever a profile's budget is, one cell is always taken apart.
    """

    def probe(groups: Groups) -> None:
        number, clock = groups.session.number, run.plan.clock
        rng = random.Random(f"{run.plan.seed} {number}")
        by_cell = _by_cell(run, wanted)
        begun_s, allowed_s = clock(), _allowed_s(run, sessions, number, groups.session.usual_s)
        always = not run.comparison.bases and number < run.plan.config.budget.least_sessions > 1
        for cell, sides in by_cell.items():
            points = {target: points_of(run, target) for target in sides}
            needed_s = _needed_s(run, sessions, sides)
            expected_s = clock() - begun_s + run.apart_pace * needed_s
            too_long = needed_s > SHARE * run.plan.config.budget.seconds and bool(run.comparison.bases)
            if too_long or (expected_s > allowed_s and not always):
                run.late_s[cell] = run.apart_pace * needed_s
                continue
            always = False
            say(f"session {number + 1}: where the time goes: {cell.id}")
            rounds_s = min(len(sides) * SESSION_S[run.plan.config.profile], sessions.left_s())
            least_s = _time(run, sessions, groups, points, rng, rounds_s / len(by_cell))
            run.apart_pace = max(1.0, least_s / needed_s) if needed_s else run.apart_pace

    return probe


def _time(
    run: Observations,
    sessions: Sessions,
    groups: Groups,
    points: Mapping[Target, Sequence[Point]],
    rng: random.Random,
    allowed_s: float,
) -> float:
    """Time the variants of one cell: each until it is warm, then rounds forwards and backwards in as many pairs as fit.

    The same variant of both sides is timed next to each other, so that what passes meanwhile meets both.

    Returns:
        The wall seconds until the first pair of rounds was over, which is the least that there is.
    """
    begun_s = run.plan.clock()
    shuffled = rng.sample(list(VARIANTS), len(VARIANTS))
    order = [(target, point) for point in shuffled for target in points if point in points[target]]
    kind = run.plan.config.devices.kind
    timer = Timer(kind, run.plan.clock)
    subjects, step_s = dict[tuple[Target, Point], Subject](), dict[tuple[Target, Point], float]()
    for target, point in order:
        variant = _Variant(run, groups, target, point)
        usual_s = sessions.step_s.get(variant.arm, 0.0)
        subject = variant.subject(usual_s if usual_s >= LONG_STEP_S else 0.0)
        if (warm := timer.warm(subject)) is not None:
            subjects[target, point], step_s[target, point] = subject, warm.step_s
    steps = {
        (target, point): whole_turns(math.ceil(target.window_s(run, point) / one_s), subjects[target, point].loaders)
        for (target, point), one_s in step_s.items()
    }
    round_s = sum(taken_s(kind, steps[key], one_s, subjects[key].loaders) for key, one_s in step_s.items())
    pairs = max(1, int(allowed_s / (2 * round_s))) if round_s else 0
    least_s = 0.0
    for number in range(2 * pairs):
        for target, point in order if number % 2 == 0 else order[::-1]:
            if (key := (target, point)) not in step_s:
                continue
            if tries := timer.windows(subjects[key], steps[key], step_s[key]):
                about = {"cell": target.cell.id, "side": target.side, "point": point}
                probe = record.Probe.model_validate({**about, "round": number, "steps": steps[key], **dict(tries[-1])})
                groups.session.probes.setdefault(target.cell, []).append(probe)
        least_s = least_s if number > 1 else run.plan.clock() - begun_s
    return least_s


@dataclass(frozen=True)
class _Variant:
    """A diagnostic variant of one side of a cell, and the groups whose workers run it."""

    run: Observations
    groups: Groups
    target: Target
    point: Point

    @property
    def arm(self) -> Arm:
        """The arm whose workers run it."""
        return self.target.arms(self.run)[VARIANTS[self.point].role]

    def subject(self, usual_s: float) -> Subject:
        """Return it as a timer takes it."""
        loaders = self.target.loaders(self.run, self.point)
        return Subject(self.window, self.run.plan.first_step_s(self.arm), loaders, usual_s)

    def window(self, steps: int, lead_in: int, timeout_s: float) -> record.Timing | None:
        """Return what the ranks tell that took part; None where the workers are gone, or fail now."""
        run, arm, variant = self.run, self.arm, VARIANTS[self.point]
        if (group := self.groups.by_arm.get(arm)) is None:
            return None
        told: dict[str, Any] = {name: getattr(variant, name) for name in ("resident", "exchange", "alone")}
        told |= {"lead_in": lead_in, "share": self.target.cell.world_size if variant.part else 1}
        try:
            for _ in range(CLEAN_TRIES):
                answers = group.request(Probed, "probe", timeout_s, name=arm.id, steps=steps, variant=told)
                if not any(answer.unclean for answer in answers):
                    break
            else:  # a window that holds an evaluation or a checkpoint says nothing of a step
                return None
        except WorkerFailure as failure:
            self._note(failure)
            self.groups.drop(group)
            return None
        if why := next((answer.unfed for answer in answers if answer.unfed), ""):
            run.unprobed[arm, self.point] = why
            return None
        return timing(answers)

    def _note(self, failure: WorkerFailure) -> None:
        """Note what could not be timed, and whether the candidate is lost."""
        run, arm, point = self.run, self.arm, self.point
        run.unprobed[arm, point] = failure.cause
        if failure.timed_out:  # the trainer's other world sizes would each take as long to show the same
            alike = (arm.side, arm.trainer, arm.world_size > 1)
            others = [other for other in run.jobs if (other.side, other.trainer, other.world_size > 1) == alike]
            run.unprobed = {(other, point): f"{arm.id}: {failure.cause}" for other in others} | run.unprobed
        if VARIANTS[point].training and arm.side == "candidate":
            run.lost[arm] = failure


def waterfalls(run: Observations, cell: Cell, *, failed: bool) -> tuple[record.WaterfallRecord, ...]:
    """Return a cell's waterfall, and its base's where that was timed too; where the cell failed it says what grew."""
    grown = _growth(run, cell) if failed else None
    made = {side: _waterfall(run, cell, side) for side in run.arms(cell)}
    return tuple(_to_record(run, Target(cell, side), fall, grown) for side, fall in made.items() if fall is not None)


def caution(run: Observations, cell: Cell) -> str:
    """Return which part of a step grew, of a cell that does not fail; "" where none is shown to be worth saying.

    The cells of the run on several devices share the error.
    """
    base, grown = _waterfall(run, cell, "base"), _growth(run, cell)
    if base is None or grown is None:
        return ""
    several = max(1, sum(each.world_size > 1 for each in run.comparison.cells))
    part = grown.part(ALPHA_WARN / several)
    if part is None or part.step_s.estimate < WORTH * base.measured_s.estimate:
        return ""
    costs_s = {(OWN_WORK,): base.ideal_s.estimate, **{bar.causes: bar.step_s.estimate for bar in base.bars}}
    return explain.caution(grown, part, costs_s.get(part.causes, 0.0))


def _growth(run: Observations, cell: Cell) -> Growth | None:
    candidate, base = ([_rounds(session, cell, side) for session in run.sessions] for side in SIDES)
    return growth(candidate, base, mode=cell.mode, world_size=cell.world_size) if cell.world_size > 1 else None


def _waterfall(run: Observations, cell: Cell, side: Side) -> Waterfall | None:
    rounds = [_rounds(session, cell, side) for session in run.sessions]
    return waterfall(rounds, mode=cell.mode, world_size=cell.world_size)


def why_none(run: Observations, cell: Cell) -> Missing | None:
    """Return why a cell has no waterfall; None where it has one, or needs none."""
    if cell.world_size == 1 or _apart(run, cell):
        return None
    if cell in run.late_s:
        why = f"the budget did not leave the {run.late_s[cell]:.0f} s it takes"
        return Missing(figure="waterfall", why=why, because="budget")
    why = _why_unexplained(run, cell)
    return Missing(figure="waterfall", why=why) if why else None


def _why_unexplained(run: Observations, cell: Cell) -> str:
    if run.plan.config.devices.oversubscribed(cell.world_size):
        return "oversubscribed devices say nothing about scaling"
    if cell in run.unexplained:
        return run.unexplained[cell]
    if cell in run.comparison.cells:
        if run.plan.config.against is None:
            return (
                "next to accepted commits only cells that look slower have one in the quick profile; "
                "with --scaling-profile=full every cell does"
            )
        return (
            f"with a named base only cells that look slower have one (in the full profile the slowest), at most "
            f"{MOST_CELLS} in a session; without --scaling-against a first run has one of every cell"
        )
    return "; ".join(cause for (arm, _), cause in run.unprobed.items() if arm == run.plan.own(cell))


def _apart(run: Observations, cell: Cell) -> bool:
    return any(cell in session.probes for session in run.sessions)


def _rounds(session: Session, cell: Cell, side: Side) -> Rounds:
    """Return seconds a step of the ranks in every window.

    Blocks time "one" and "step" as well, and in more windows, but earlier: what disturbs them would be mistaken for the
    difference between "step" and "resident", which is the feed.
    """
    rounds: dict[Point, list[Sequence[float]]] = {}
    for probe in session.probes.get(cell, ()):
        if probe.side == side:
            step_s = tuple(duration / probe.steps / 1e9 for duration in probe.duration_ns)
            rounds.setdefault(probe.point, []).append(step_s)
    return rounds


def _to_record(run: Observations, target: Target, fall: Waterfall, grown: Growth | None) -> record.WaterfallRecord:
    (cell, side), own = target, target.arms(run)["own"]
    foreign = [c.foreign for session in run.sessions for c in session.conditions if c.foreign is not None]
    foreign_cores = fmean(foreign or [0.0])
    about = About(
        trainer=cells.short(own.trainer),
        model=run.plan.workload(cell.workload).model.rpartition(":")[2],
        world_size=cell.world_size,
        batch=-(-run.jobs[own].global_batch // cell.world_size),
        gradient_bytes=run.gradient_bytes.get(own, 0),
        foreign_cores=foreign_cores if foreign_cores > LIMIT_CORES else None,
    )
    return record.WaterfallRecord(
        side=side,
        sessions=fall.sessions,
        ideal_s=fall.ideal_s,
        measured_s=fall.measured_s,
        bars=tuple(record.BarRecord(causes=bar.causes, step_s=bar.step_s, df=bar.df) for bar in fall.bars),
        sentence=sentence(fall, about) if side != "candidate" or grown is None else against_base(fall, about, grown),
        notes=tuple(_notes(run, target, fall)),
    )


def _notes(run: Observations, target: Target, fall: Waterfall) -> Iterable[str]:
    """Yield why causes could not be told apart."""
    by_role = target.arms(run)
    if target.cell.runs_script:
        if target.cell.mode == "strong":
            yield "what wraps a script's model is in the time of a rank alone, so overhead and small batch are one bar"
    elif any("overhead" in bar.causes and len(bar.causes) > 1 for bar in fall.bars):
        trainer = by_role["own"].trainer
        if not run.trainers[target.side, trainer].unsynced:
            yield f"{cells.short(trainer)} has no step_unsynced, so its overhead and its exchange are one bar"
    for (arm, point), cause in run.unprobed.items():
        if arm in by_role.values():
            yield f"{point} of {arm.id} could not be timed: {cause}"
    if by_role["plain"] in run.lost:
        yield f"{target.cell.world_size} independent devices could not be timed: {run.lost[by_role['plain']].cause}"
