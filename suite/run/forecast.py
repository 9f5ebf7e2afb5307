"""What a run is going to do, said beforehand: cells, minutes, and the smallest slowdown that it will find.

The forecast uses the time that templates took to load, or one worker to start, and from the first session on what that
took. The number of sessions by which error is spent is fixed when the first session has shown how long one takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from suite.base.sides import Sides
from suite.plan import workloads
from suite.plan.cells import PLAIN, SINGLE, Arm, Cell
from suite.plan.config import Config
from suite.plan.workloads import LAUNCH_BOUND
from suite.records.calibration import POWER, promise
from suite.render.figures import plural
from suite.room.limits import usable_cores
from suite.run import accuracy, attribution, collectives, judging, samples, schedule
from suite.run.observations import Left, Observations
from suite.run.plan import Plan
from suite.run.schedule import LEAVE_AFTER, Price
from suite.run.session import Sessions
from suite.run.timer import LEAD_IN_S, WINDOW_S
from suite.verdict import ALPHA_PASS, FIRST_LOOK, Middle

RANK_S = 0.4  # of a core, for a forked rank to build its trainer; others load torch before
ENDING_S = 1.5  # the first steps, and the end of the processes
CURVE = (0.5, 0.8, POWER)  # probabilities with which the plan says what is found
SCATTERS = (0.01, 0.03)  # SDs of sessions for which the plan says it where that of this machine is not known
FAR = 1.3  # times the minutes in a plan, or so many times less, are another plan
SPARE = 32  # descriptors for all but ranks and hosts: 16 in the controller (docs.performance.growth), 23 in a rank
UNKNOWN = "plan: contexts, communicators and first steps on GPUs are not in it; the first session shows what they take"
OF_A_RANK = 2  # descriptors that a rank of gloo opens for every rank of its group (docs/several-machines.md)


class Length(NamedTuple):
    """What a session of the run will roughly be: its wall seconds, how many rounds it has, and the seconds of each."""

    wall_s: float
    rounds: int
    round_s: float = 0.0


class Pace(NamedTuple):
    """What the parts of a session took over what was reasoned, and the seconds of all that follows its blocks."""

    starting: float = 1.0
    warming: float = 1.0
    timing: float = 1.0
    ending_s: float = ENDING_S


REASONED = Pace()


class Known(NamedTuple):
    """What was measured of a session's parts.

    Attributes:
        loading_s: what loading templates takes of a session; 0 where each rank loads torch by itself.
        rank_s: of a core, until a rank has built its trainer.
        step_s: seconds a step of the arms that have been timed; a window has one step or more.
        cold_s: of their first windows, with which a later session's warm-up mostly ends.
    """

    loading_s: float
    rank_s: float
    step_s: Mapping[Arm, float]
    cold_s: Mapping[Arm, float]


class Lengths:
    """How long sessions are: by what the last one took, of what nobody can know before the first one has shown it.

    On GPUs these are contexts, communicators, the first steps of processes, and what surrounds a window.
    """

    def __init__(self, run: Observations, sides: Sides, sessions: Sessions) -> None:
        self._run, self._sides, self._sessions, self._pace = run, sides, sessions, REASONED

    def of(self, timed: Iterable[Arm], untimed: Iterable[Arm], budget_s: float) -> Length:
        """Return how long a session of these arms is, as `session` has it; 0 where none can be started."""
        both = self._with_jobs(timed), self._with_jobs(untimed)
        return session(self._run, *both, budget_s, self._known(), self._pace) if any(both) else Length(0.0, 0)

    def learn(self, timed: Iterable[Arm], untimed: Iterable[Arm]) -> None:
        """Learn from the last session, which had these arms."""
        last, blocks, known = self._run.sessions[-1], len(self._run.sessions[-1].conditions), self._known()
        parts = _parts(self._run, self._with_jobs(timed), self._with_jobs(untimed), known)
        starting_s, warming_s, round_s = parts
        if last.starting_s and starting_s and blocks and round_s:
            before_s, timed_s = last.starting_s + last.warming_s, last.timing_s - last.filling_s
            # An arm's first warm-up is longer, because nobody knew how long a warm step takes.
            first = len(self._run.sessions) == 1 and all(arm in known.cold_s for arm in self._with_jobs(timed))
            self._pace = Pace(
                last.starting_s / starting_s,
                1.0 if first else last.warming_s / warming_s,
                last.timing_s / (2 * blocks * round_s),
                max(0.0, last.usual_s - before_s - timed_s),
            )

    def _with_jobs(self, arms: Iterable[Arm]) -> list[Arm]:
        return [arm for arm in arms if arm in self._run.jobs]

    def _known(self) -> Known:
        rank_s = RANK_S if self._sides.forks else self._sides.start_s
        return Known(self._sides.loading_s, rank_s, self._sessions.step_s, self._sessions.cold_s)


def session(
    run: Observations,
    timed: Sequence[Arm],
    untimed: Sequence[Arm],
    budget_s: float,
    known: Known,
    pace: Pace = REASONED,
) -> Length:
    """Return roughly how long a session of these arms is.

    Args:
        run: has the jobs of the arms.
        timed, untimed: arms of the session; the untimed ones only start.
        budget_s: of all sessions.
        known: of its parts.
        pace: of the last session.
    """
    starting_s, warming_s, round_s = _parts(run, timed, untimed, known)
    start_s, each_s = pace.starting * starting_s + pace.warming * warming_s, pace.timing * round_s
    rounds = 2 * run.block_count(start_s, each_s, budget_s)
    return Length(start_s + rounds * each_s + pace.ending_s, rounds, each_s)


def _parts(run: Observations, timed: Sequence[Arm], untimed: Sequence[Arm], known: Known) -> tuple[float, float, float]:
    """Return the seconds until the processes of a session's arms have started, of their warm-up, and of a round."""
    of_cores_s = run.processes((*timed, *untimed)) * known.rank_s / usable_cores()
    before_s = 0.0 if run.plan.config.devices.kind == "cpu" else LEAD_IN_S
    windows_s = {arm: max(WINDOW_S, known.step_s.get(arm, 0.0)) + before_s for arm in timed}
    warming_s = math.fsum(known.cold_s.get(arm, window_s) for arm, window_s in windows_s.items())
    return known.loading_s + max(known.rank_s, of_cores_s), warming_s, math.fsum(windows_s.values())


def descriptors(plan: Plan) -> int:
    """Return the most descriptors that the controller opens, or one of the ranks that inherit its limit.

    The controller has a connection to every rank of a session's groups. Waterfalls need the plain trainer, or a
    script's ranks apart, on as many devices. Where bases are rebuilt, there are two of them at most.
    """
    devices, groups = plan.config.devices, set[tuple[str, str, int]]()
    for cell in plan.cells:
        groups |= {(cell.trainer, cell.workload, size) for size in (1, cell.world_size)}
        groups.add((SINGLE, cell.workload, 1))
        if plan.config.explain and not devices.oversubscribed(cell.world_size):
            groups.add((PLAIN, cell.workload, cell.world_size))
    rebuilt = 2 if plan.baseline.runs and devices.hosts == 1 else 0
    sides = 2 if plan.config.against is not None else 1 + rebuilt
    sizes = [*(cell.world_size for cell in plan.cells), *(sweep.world_size for sweep in plan.sweeps)]
    return max(sides * sum(size for _, _, size in groups), OF_A_RANK * max(sizes, default=0)) + devices.hosts + SPARE


def carried(
    cells: Sequence[Cell], sessions: int, cost_s: Callable[[Sequence[Cell]], float], budget_s: float
) -> tuple[Cell, ...]:
    """Return the cells that a budget can judge; those on one device are the first to be left out.

    Args:
        cells: all of them. At least one is kept.
        sessions: to come, that decide a cell.
        cost_s: returns the seconds of a session over some of them.
        budget_s: for all these sessions.
    """
    kept = sorted(cells, key=lambda cell: -cell.world_size)
    while len(kept) > 1 and sessions * cost_s(kept) > budget_s:
        kept.pop()
    return tuple(cell for cell in cells if cell in kept)


def lines(run: Observations, planned: int, each: Length, left_out: Sequence[Cell] = ()) -> list[str]:
    """Return the plan in sentences: `planned` sessions, of which those to come have this length each.

    `left_out` are cells that the budget will have no room for when the figures of all have been timed.
    """
    comparison, comparisons = run.comparison, judging.comparisons(run)
    bases = f" against {', '.join(base.label for base in comparison.bases.values())}" if comparison.bases else ""
    at_most_s, minutes = training_s(run, each), timing_s(run, planned, each) / 60
    training = f", and at most {at_most_s / 60:.1f} min of training" if at_most_s else ""
    if run.compares_first and accuracy.trained(run):
        training = ", and training in what they leave"
    first = (
        f"plan: {len(comparison.judged) or len(run.plan.cells)} cell(s){bases}, "
        f"about {planned} session(s) of {each.wall_s:.0f} s, {minutes:.1f} min in all{training} "
        f"(budget {run.plan.config.budget.seconds / 60:.1f} min); {plural(comparisons, 'check')} can fail"
    )
    judges = comparison.bases and not run.plan.config.calibrate
    devices = run.plan.config.devices
    excluded = dict.fromkeys((*comparison.over_budget, *left_out))
    over = ", ".join(cell.id + devices.mark(cell.world_size) for cell in excluded)
    named = [f"plan: not judged, because the budget has no room for them: {over}{comparison.room}"] if over else []
    if apart := ", ".join(cell.id + devices.mark(cell.world_size) for cell in comparison.apart):
        others = "one run rebuilds one newest and one pinned commit, and these have others"
        named.append(
            f"plan: not compared with all of their accepted commits: {apart}; {others}: run them separately (-k)"
        )
    promised = [*named, _promise(run, comparisons, planned, each.rounds), _scope(planned)] if judges else []
    not_measured = [f"plan: {sentence}" for sentence in run.plan.config.left_out]
    unknown = [UNKNOWN] if run.plan.config.devices.kind != "cpu" and not run.sessions else []
    late = ", ".join(cell.id for cell in attribution.left_out(run))
    whole = [f"plan: not taken apart, because the budget has no room for them: {late}"] if late else []
    floors = _short_of_floors(run, planned)
    return [first, *not_measured, *unknown, *promised, *whole, *floors, *_launch_bound(run.plan.config)]


class Shown(NamedTuple):
    """What a plan said: sessions, seconds of the run without and with all its training, and cells not taken apart."""

    sessions: int = 0
    least_s: float = 0.0
    most_s: float = 0.0
    left_out: tuple[Cell, ...] = ()

    @classmethod
    def of(cls, run: Observations, planned: int, each: Length) -> Shown:
        """Return what a plan says, as `lines` has it."""
        least_s = timing_s(run, planned, each)
        return cls(planned, least_s, least_s + training_s(run, each), tuple(attribution.left_out(run)))

    def is_wrong(self, now: Shown) -> bool:
        """Return whether a reader of this plan has to know of the other: more is left out, or the time is another."""
        return now.left_out != self.left_out or now.most_s > FAR * self.most_s or now.least_s < self.least_s / FAR


def timing_s(run: Observations, planned: int, each: Length) -> float:
    """Return how long a run of so many sessions takes from its beginning, without training that is still to come."""
    sessions_s = (planned - len(run.sessions)) * each.wall_s
    return run.plan.elapsed_s + sessions_s + collectives.cost_s(run.plan)


def training_s(run: Observations, each: Length) -> float:
    """Return how long the first session trains at most; 0 when it is over, and where nets are trained at the end."""
    if run.sessions or run.compares_first or not accuracy.trained(run):
        return 0.0
    return max(0.0, accuracy.allowed_s(run, run.plan.left_s - each.wall_s, each.wall_s))


def _scope(planned: int) -> str:
    """Return what a PASS does not exclude, after the fewest sessions that it takes and after all."""
    rarest, at_last = (1 - ALPHA_PASS ** (1 / sessions) for sessions in (FIRST_LOOK, max(planned, FIRST_LOOK)))
    return (
        f"plan: a PASS is about the mean over processes: after {FIRST_LOOK} sessions, the fewest, it does not exclude "
        f"a slow mode in fewer than {rarest:.0%} of them"
        + (f", and after all {planned} in fewer than {at_last:.0%}" if planned > FIRST_LOOK else "")
    )


def _short_of_floors(run: Observations, planned: int) -> list[str]:
    """Say where the sessions are too few for a floor."""
    if not run.plan.floors or run.plan.config.calibrate or planned > FIRST_LOOK:
        return []
    return [
        f"plan: {planned} session(s) are too few to fail an efficiency below its floor, which takes {FIRST_LOOK + 1}; "
        "raise --scaling-budget"
    ]


def _launch_bound(config: Config) -> list[str]:
    """Name the workloads that say little about GPUs."""
    names = [workload.name for workload in config.workloads if workload.model == LAUNCH_BOUND]
    if config.devices.kind == "cpu" or not names:
        return []
    return [
        f"plan: {', '.join(names)}: LeNet is too small for a GPU: most of its step is expected to be the launching of "
        f"kernels, which scales badly on any machine; {workloads.default(config.devices.kind)} can occupy a GPU"
    ]


def _promise(run: Observations, comparisons: int, planned: int, rounds: int) -> str:
    """Return the smallest slowdowns that are found in every cell: the power curve, or what they depend on."""
    cells = run.comparison.cells
    known = [calibrated for calibrated in map(run.calibrated, cells) if calibrated is not None]
    tolerance, uncalibrated = run.plan.config.tolerance, len(known) < len(cells)
    sds = SCATTERS if uncalibrated else [calibrated.spread.session_sd_of(rounds) for calibrated in known]
    found = {power: [promise(sd, comparisons, planned, tolerance, power) for sd in sds] for power in CURVE}
    at_best = min(found[POWER]) if uncalibrated else max(found[POWER])
    if planned < run.sessions_needed or not math.isfinite(at_best) or at_best > 1:
        return "plan: this budget is too short to promise that any slowdown is found; raise it"
    if uncalibrated:
        why = run.uncalibrated or "not every cell was calibrated"
        least = [f"{slowdown:.1%} or more if it is {sd:.0%}" for slowdown, sd in zip(found[POWER], sds, strict=True)]
        return (
            "plan: the smallest slowdown that this run finds is not known, because it depends on the SD of sessions "
            f"here ({why}; python -m suite calibrate measures it): in {POWER:.0%} of runs {', '.join(least)}"
        )
    curve = ", of ".join(f"{max(slowdowns):.1%} or more in {power:.0%}" for power, slowdowns in found.items())
    return f"plan: a slowdown is found, by this machine's calibration: of {curve} of runs"


def leave(run: Observations, undecided: Sequence[Cell], bought: Callable[[Sequence[Cell]], Price]) -> str:
    """Note the cells that leave; return a line of the plan, "" where none does.

    Args:
        run: with a base.
        undecided: its cells that may leave.
        bought: returns what the rest of the budget buys for some of its cells.
    """
    config = run.plan.config
    if not run.comparison.bases or config.calibrate or len(run.sessions) < LEAVE_AFTER:
        return ""
    middles = dict[Cell, list[Middle]]()
    for cell in undecided:
        own, *others = run.arms(cell).values()
        if run.lost.keys().isdisjoint((own, *others)):
            middles[cell] = samples.middles(run, own, others[0])
    known = schedule.scatters(middles, 2 * fmean(len(session.conditions) for session in run.sessions))
    stay = [cell for cell in known if judging.surplus(run, cell) or cell in run.plan.floors]
    margin = math.log1p(config.tolerance)
    gone = schedule.leaving(known, stay, bought, margin)
    if not gone:
        return ""
    rounds = bought([cell for cell in known if cell not in gone]).rounds
    left = {cell: Left(known[cell].sessions, known[cell].needed(rounds, margin)) for cell in gone}
    run.comparison = replace(run.comparison, left={**run.comparison.left, **left})
    names = ", ".join(cell.id for cell in gone)
    return f"plan: too noisy to be decided in the rest of the budget, which goes to the other cells: {names}"
