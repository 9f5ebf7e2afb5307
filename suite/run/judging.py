"""Every rule that judges a cell, and a cell's outcome from all of them.

- time: against a base in the same sessions, from `--scaling-against` or the accepted commit rebuilt;
- drift: against the rebuilt commit of the pinned, older baseline in the same sessions;
- machine: the efficiency of the accepted commit against what it was in accepted runs of this host;
- stored: the ratio to accepted runs of other times is shown. Where their commit was not measured in the same sessions,
  the cell is INCONCLUSIVE;
- floor: efficiency against a configured minimum;
- accuracy: k devices against one, and one against accepted runs;
- counters: what a step does against a base's, where `--scaling-counters fail` asks for it. Counts have no noise.

All that can fail a cell, except counters, share one error budget, which is fixed before anything is measured
(`comparisons`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from suite import verdict
from suite.plan.cells import Cell, Side
from suite.records.record import CheckRecord
from suite.run import accuracy, counting, samples
from suite.run.observations import Observations
from suite.verdict import GRAVEST_FIRST, Outcome, Verdict, metrics
from suite.verdict.floor import floor
from suite.verdict.metrics import Interval
from suite.verdict.outcome import ALPHA_WARN
from suite.verdict.reasons import Reason
from suite.verdict.tail import Tail, tail

RULE_AGAINST: dict[Side, str] = {"base": "time", "pinned": "drift"}


def comparisons(run: Observations) -> int:
    """Return how many checks can fail.

    Strong and weak on one device are one arm, and so one check.
    """
    own = {run.plan.own(cell) for cell in run.plan.cells}
    accepted = bool(run.plan.baseline.runs) and run.plan.config.against is None
    of_machine = sum(arm.world_size > 1 for arm in own) if accepted else 0
    sides = 1 if run.plan.config.against is not None else 2 if accepted else 0
    return max(1, sides * len(own) + of_machine + len(run.plan.floors) + len(accuracy.wanted_pairs(run)))


def against(run: Observations, cell: Cell, side: Side) -> Verdict:
    """Return a cell's verdict against a base in the run.

    Cells of its world size with processes of their own show how sessions scatter: another trainer or workload, for
    strong and weak scaling share processes.
    """
    learned = None
    if calibrated := run.calibrated(cell):
        learned = verdict.Learned(calibrated.spread.tau**2, calibrated.spread.tau2_var)
    own = run.arms(cell)["candidate"]
    others = [run.arms(other) for other in run.comparison.cells if other.world_size == cell.world_size]
    apart = [arms for arms in others if side in arms and arms["candidate"].processes != own.processes]
    windows = samples.by_session(run, own, run.arms(cell)[side])
    pairs = dict.fromkeys((arms["candidate"], arms[side]) for arms in apart)
    peers = [samples.by_session(run, *pair) for pair in pairs]
    return verdict.paired(
        [verdict.Middle.of(each) for each in windows.values()],
        terms(run),
        learned,
        [[verdict.Middle.of(peer[n]) if n in peer else None for n in windows] for peer in peers],
    )


def terms(run: Observations) -> verdict.Terms:
    """Return what the verdicts of a run keep to."""
    config, alone = run.plan.config, max(1, run.comparisons_alone)
    return verdict.Terms(config.tolerance, comparisons(run), run.planned, run.session_s, alone, run.plan.overrun_s)


def checks(run: Observations, cell: Cell) -> tuple[CheckRecord, ...]:
    """Return what every rule that applies to a cell says so far."""
    arms = run.arms(cell)
    bases = run.comparison.bases if cell in run.comparison.cells else ()
    over_budget = cell in run.comparison.over_budget
    judge = _left if cell in run.comparison.left else _time
    timed = [(judge(run, cell, side), arms[side]) for side in bases if side in arms and not over_budget]
    return (
        # A FAIL stands, even if the rebuilt commit, which may be timed for other cells, is lost later.
        *(check for check, base in timed if base not in run.lost or check.outcome is Outcome.FAIL),
        *([_over_budget(run, cell)] if over_budget else []),
        *run.stored.get(cell, ()),
        *([_floor(run, cell)] if cell in run.plan.floors else []),
        *accuracy.checks(run, cell, comparisons(run)),
        *counting.checks(run, cell),
    )


def combined(checks: Sequence[CheckRecord]) -> tuple[Outcome, str]:
    """Return the gravest outcome of a cell's rules and its reason; without a rule about time no cell is a PASS."""
    counting = [check for check in checks if check.counts]
    timed = any(check.rule == "time" for check in counting)
    for gravest in GRAVEST_FIRST:
        reasons = [check.reason for check in counting if check.outcome is gravest]
        if reasons and (gravest is not Outcome.PASS or timed):
            return gravest, "; ".join(reasons)
    return Outcome.NO_BASELINE, "; ".join(["there is nothing to compare with", *(check.reason for check in counting)])


def surplus(run: Observations, cell: Cell) -> float:
    """Return by how much a cell looks slower than a base, or below its floor, so far; 0 where it does not.

    It says whose parts are worth timing, and decides nothing.
    """
    arms = run.arms(cell)
    behind = [
        verdict.surplus(samples.middles(run, arms["candidate"], arms[side]), run.plan.config.tolerance)
        for side in run.comparison.bases
        if side in arms
    ]
    if cell in run.plan.floors and (logs := samples.log_efficiencies(run, arms["candidate"])):
        behind.append(math.log(run.plan.floors[cell].efficiency) - fmean(logs))
    return max(0.0, *behind)


def lacking(run: Observations, cell: Cell) -> float:
    """Return how many more sessions would decide a cell against its bases if they showed what is seen so far."""
    return max(against(run, cell, side).lacking for side in run.comparison.bases if side in run.arms(cell))


def warning(run: Observations, cell: Cell) -> str:
    """Return in words that efficiency fell because one device became faster, and k devices not slower; else ""."""
    arms = run.arms(cell)
    if cell.world_size == 1 or "base" not in arms or cell not in run.comparison.cells:
        return ""
    if run.plan.config.devices.oversubscribed(cell.world_size):
        return ""
    own = arms["candidate"], arms["base"]
    at_k, at_one = (samples.by_session(run, *pair) for pair in (own, [arm.on_one for arm in own]))
    both = [session for session in at_k if session in at_one]
    widened = [verdict.Middle.of(at_k[n]).value - verdict.Middle.of(at_one[n]).value for n in both]
    if len(widened) < verdict.FIRST_LOOK or against(run, cell, "base").outcome is not Outcome.PASS:
        return ""
    mean, error = metrics.mean_and_standard_error(widened)
    several = {run.plan.own(each) for each in run.comparison.cells if each.world_size > 1}
    low = mean - metrics.t_quantile(len(widened) - 1, 1 - ALPHA_WARN / len(several)) * error
    if low <= 0 or mean < math.log1p(run.plan.config.tolerance) / 2:
        return ""
    return f"efficiency is {-math.expm1(-mean):.1%} below the base's: gap widened, nothing slower"


def widened(run: Observations, cell: Cell) -> str:
    """Return in words that the accepted commit's efficiency fell, and its step is not clearly longer; else ""."""
    return next((check.reason for check in run.stored.get(cell, ()) if check.kind == "gap widened"), "")


def slow_tail(run: Observations, cell: Cell) -> Tail | None:
    """Return how a cell's slowest rounds compare with its base's; None without a base, or from too few sessions."""
    arms = run.arms(cell)
    if "base" not in arms or cell not in run.comparison.cells:
        return None
    judged = {run.plan.own(each) for each in run.comparison.cells}
    return tail(samples.windows(run, arms["candidate"], arms["base"]), len(judged))


def _of_base(run: Observations, side: Side, outcome: Outcome, why: Reason, ratio: Interval | None) -> CheckRecord:
    """Return a check of a cell's time against a base in the run."""
    rule, label = RULE_AGAINST[side], run.comparison.bases[side].label
    return CheckRecord(rule=rule, against=label, outcome=outcome, reason=str(why), kind=why.kind, ratio=ratio)


def _time(run: Observations, cell: Cell, side: Side) -> CheckRecord:
    judged = against(run, cell, side)
    return _of_base(run, side, judged.outcome, judged.why, judged.ratio)


def _left(run: Observations, cell: Cell, side: Side) -> CheckRecord:
    seen, left = against(run, cell, side), run.comparison.left[cell]
    of = {"sessions": float(left.sessions)}
    if left.needed is not None:
        of["more_s"] = (left.needed - left.sessions) * run.session_s
    return _of_base(run, side, Outcome.INCONCLUSIVE, Reason("left", of), seen.ratio)


def _over_budget(run: Observations, cell: Cell) -> CheckRecord:
    arms = run.arms(cell)
    side = list(arms)[1]  # the newest commit, or the pinned one where it is alone
    judged, left_out = len(run.comparison.judged), len(run.comparison.over_budget)
    seen = against(run, cell, side).ratio if cell in run.comparison.cells and arms[side] not in run.lost else None
    of = {"budget_s": run.plan.config.budget.seconds, "judged": judged, "cells": judged + left_out}
    why = Reason("over budget", of, {"room": run.comparison.room})
    return _of_base(run, side, Outcome.INCONCLUSIVE, why, seen)


def _floor(run: Observations, cell: Cell) -> CheckRecord:
    minimum, own = run.plan.floors[cell].efficiency, run.plan.own(cell)
    logs = samples.log_efficiencies(run, own)[: run.planned or None]
    kept = terms(run)
    judged = floor(logs, minimum, kept.comparisons, kept.planned, kept.tolerance)
    reason = judged.reason
    if judged.outcome is Outcome.INCONCLUSIVE:
        reason = str(judged.why._replace(numbers={**judged.why.numbers, "more_s": kept.more_s(judged.lacking)}))
        if failed := run.lost.get(own.on_one):
            reason = f"efficiency: its one-device arm failed: {failed.cause}"
    against = f"efficiency {minimum:g}"
    return CheckRecord(rule="floor", against=against, outcome=judged.outcome, reason=reason, kind=judged.why.kind)
