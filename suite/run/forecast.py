"""What a run is going to do, said beforehand: cells, minutes, and the smallest slowdown that it will find.

The forecast uses the time that templates took to load, or one worker to start. The number of sessions by which error is
spent is fixed later, when the first session has shown how long one takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from suite.plan import workloads
from suite.plan.cells import PLAIN, SINGLE, Arm, Cell
from suite.plan.config import Config
from suite.plan.workloads import LAUNCH_BOUND
from suite.records.calibration import POWER, promise
from suite.render.figures import plural
from suite.room.limits import usable_cores
from suite.run import accuracy, collectives, judging
from suite.run.observations import Observations
from suite.run.plan import Plan
from suite.run.session import WINDOW_S
from suite.verdict import ALPHA_PASS, FIRST_LOOK
from suite.verdict.paired import fewest_alone

RANK_S = 0.4  # of a core, for a forked rank to build its trainer; others load torch before
ENDING_S = 1.5  # the first steps, and the end of the processes
CURVE = (0.5, 0.8, POWER)  # probabilities with which the plan says what is found
SCATTERS = (0.01, 0.03)  # SDs of sessions for which the plan says it where that of this machine is not known
SPARE = 32  # descriptors for all but ranks and hosts: 16 in the controller (docs/evidence/scale.md), 23 in a rank
OF_A_RANK = 2  # descriptors that a rank of gloo opens for every rank of its group (docs/several-machines.md)


class Length(NamedTuple):
    """What a session of the run will roughly be: its wall seconds, and how many rounds it has."""

    wall_s: float
    rounds: int


def session(
    run: Observations,
    arms: Sequence[Arm],
    budget_s: float,
    *,
    loading_s: float,
    rank_s: float,
    step_s: Mapping[Arm, float],
) -> Length:
    """Return roughly how long a session of these arms is.

    Args:
        run: has the jobs of the arms.
        arms: of the session.
        budget_s: of all sessions.
        loading_s: what loading templates takes of a session; 0 where each rank loads torch by itself.
        rank_s: of a core, until a rank has built its trainer.
        step_s: seconds a step of the arms that have been timed; a window has one step or more.
    """
    round_s = sum(max(WINDOW_S, step_s.get(arm, 0.0)) for arm in arms)
    starting_s = loading_s + run.processes(arms) * rank_s / usable_cores() + round_s  # to warm up
    rounds = 2 * run.block_count(starting_s, round_s, budget_s)
    return Length(starting_s + rounds * round_s + ENDING_S, rounds)


def descriptors(plan: Plan) -> int:
    """Return the most descriptors that the controller opens, or one of the ranks that inherit its limit.

    The controller has a connection to every rank of a session's groups. Waterfalls need the plain trainer on as many
    devices. Where bases are rebuilt, there are two of them at most.
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
    sessions_s = (planned - len(run.sessions)) * each.wall_s
    minutes = (run.plan.elapsed_s + sessions_s + collectives.cost_s(run.plan)) / 60
    training_s = accuracy.allowed_s(run, run.plan.config.budget_s - run.plan.elapsed_s)
    training = f"at most {max(0.0, training_s) / 60:.1f} min of training"
    if run.compares_first:
        training = "training in what they leave"
    training = f", and {training}" if accuracy.trained(run) else ""
    runs = run.plan.config.runs
    of_runs = f" in a bisection of at most {runs} runs" if runs > 1 else ""
    first = (
        f"plan: {len(comparison.judged) or len(run.plan.cells)} cell(s){bases}, "
        f"about {planned} session(s) of {each.wall_s:.0f} s, {minutes:.1f} min in all{training} "
        f"(budget {run.plan.config.budget_s / 60:.1f} min); {plural(comparisons, 'check')} can fail{of_runs}"
    )
    judges = comparison.bases and not run.plan.config.calibrate
    devices = run.plan.config.devices
    excluded = dict.fromkeys((*comparison.over_budget, *left_out))
    over = ", ".join(cell.id + devices.mark(cell.world_size) for cell in excluded)
    named = [f"plan: not judged, because the budget has no room for them: {over}{comparison.room}"] if over else []
    if apart := ", ".join(cell.id + devices.mark(cell.world_size) for cell in comparison.apart):
        others = "one run rebuilds those of most cells, and these have others"
        named.append(
            f"plan: not compared with all of their accepted commits: {apart}; {others}: run them separately (-k)"
        )
    promised = [*named, _promise(run, comparisons, planned, each.rounds), _scope(run, planned)] if judges else []
    left_out_of_all = [f"plan: {sentence}" for sentence in run.plan.config.left_out]
    return [first, *left_out_of_all, *promised, *_short_of_floors(run, planned), *_launch_bound(run.plan.config)]


def _scope(run: Observations, planned: int) -> str:
    """Return what a PASS does not exclude, after the fewest sessions that it takes and after all."""
    sizes = Counter(size for *_, size in {run.plan.own(cell).processes for cell in run.comparison.cells})
    alone = fewest_alone(ALPHA_PASS / run.plan.config.runs)
    fewest = FIRST_LOOK if max(sizes.values()) > 1 else max(FIRST_LOOK, alone)
    rarest, at_last = (1 - ALPHA_PASS ** (1 / sessions) for sessions in (fewest, max(planned, fewest)))
    return (
        f"plan: a PASS is about the mean over processes: after {fewest} sessions, the fewest, it does not exclude a "
        f"slow mode in fewer than {rarest:.0%} of them"
        + (f", and after all {planned} in fewer than {at_last:.0%}" if planned > fewest else "")
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
    notes = "".join(f"; {note}" for note in dict.fromkeys(calibrated.note for calibrated in known if calibrated.note))
    curve = ", of ".join(f"{max(slowdowns):.1%} or more in {power:.0%}" for power, slowdowns in found.items())
    return f"plan: a slowdown is found, by this machine's calibration: of {curve} of runs{notes}"
