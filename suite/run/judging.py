"""Every rule that can fail a cell, and a cell's outcome from all of them.

- time: beside a base in the same sessions, `--scaling-against` or the baseline's commit rebuilt;
- drift: the same beside a pinned older baseline;
- stored: against accepted runs of other times; it decides nothing, and keeps a cell INCONCLUSIVE whose accepted commit
  was not measured beside it;
- floor: efficiency against a configured one;
- accuracy: k devices against one.

They share one error budget, which is fixed before anything is measured (`comparisons`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from suite import verdict
from suite.plan import cells
from suite.plan.cells import Cell, Side
from suite.records.record import CheckRecord, interval
from suite.run import accuracy, samples
from suite.run.observations import Observations
from suite.verdict import GRAVEST_FIRST, Outcome, Verdict, metrics
from suite.verdict.floor import floor

BY_SESSION = ("time", "drift", "floor")  # the rules that a further session may decide


def comparisons(run: Observations) -> int:
    """How many things in the run can fail. Strong and weak on one device are one arm, and so one comparison."""
    own = {run.plan.own(cell) for cell in run.plan.cells}
    sides = 1 if run.plan.config.against is not None else 2 if run.plan.baseline.runs else 0
    return max(1, sides * len(own) + len(run.plan.floors) + len(accuracy.wanted_pairs(run)))


def beside(run: Observations, cell: Cell, side: Side) -> Verdict:
    """A cell's verdict against a base in the run."""
    arms, spread = run.compared(cell), run.plan.spread(cell)
    rounds = samples.contrast(run, arms["candidate"], arms[side])
    learned = None if spread is None else verdict.Learned(spread.tau**2, spread.tau2_var)
    return verdict.paired(rounds, run.plan.config.tolerance, comparisons(run), run.planned, run.session_s, learned)


def checks(run: Observations, cell: Cell) -> tuple[CheckRecord, ...]:
    """What every rule that applies to a cell has found so far."""
    found = [
        _beside(run, cell, side)
        for side in run.bases
        if cell in run.beside and run.compared(cell)[side] not in run.lost
    ]
    found += run.stored.get(cell, ())
    if cell in run.plan.floors:
        found.append(_floor(run, cell))
    return (*found, *accuracy.checks(run, cell, comparisons(run)))


def combined(checks: Sequence[CheckRecord]) -> tuple[Outcome, str]:
    """A cell's outcome from those of its rules: the gravest counts, and says why; time is what a PASS is about."""
    counting = [check for check in checks if check.counts]
    timed = any(check.rule == "time" for check in counting)
    for gravest in GRAVEST_FIRST:
        reasons = [check.reason for check in counting if check.outcome is gravest]
        if reasons and (gravest is not Outcome.PASS or timed):
            return gravest, "; ".join(reasons)
    return Outcome.NO_BASELINE, "; ".join(["there is nothing to compare with", *(check.reason for check in counting)])


def warning(run: Observations, cell: Cell) -> str:
    """In words, if efficiency fell because one device became faster and not because k became slower; else empty."""
    if cell.world_size == 1 or "base" not in run.bases or cell not in run.beside:
        return ""
    alone = Cell(cell.trainer, cell.workload, cell.mode, 1)
    pairs = [run.compared(at) for at in (cell, alone)]
    at_k, at_one = (samples.by_session(run, arms["candidate"], arms["base"]) for arms in pairs)
    both = [session for session in at_k if session in at_one]
    widened = [metrics.location(at_k[session]) - metrics.location(at_one[session]) for session in both]
    if len(widened) < verdict.FIRST_LOOK or beside(run, cell, "base").outcome is not Outcome.PASS:
        return ""
    mean, error = metrics.mean_and_standard_error(widened)
    if (
        mean - metrics.t_quantile(len(widened) - 1, 0.95) * error <= 0
        or mean < math.log1p(run.plan.config.tolerance) / 2
    ):
        return ""
    return f"efficiency is {-math.expm1(-mean):.1%} below the base's: the gap widened, nothing is slower"


def _beside(run: Observations, cell: Cell, side: Side) -> CheckRecord:
    found = beside(run, cell, side)
    return CheckRecord(
        rule="time" if side == "base" else "drift",
        against=run.bases[side].label,
        outcome=found.outcome,
        reason=found.reason,
        ratio=found.ratio and interval(found.ratio),
    )


def _floor(run: Observations, cell: Cell) -> CheckRecord:
    minimum, own = run.plan.floors[cell].efficiency, run.plan.own(cell)
    one = cells.arm(own.side, own.trainer, cell, 1)
    planned = run.alone + run.planned
    logs = samples.log_efficiencies(run, own, one, cell.mode)[: planned or None]
    found = floor(logs, minimum, comparisons(run), planned, run.session_s, tolerance=run.plan.config.tolerance)
    reason = f"efficiency: its one-device arm failed: {run.lost[one].cause}" if one in run.lost else found.reason
    return CheckRecord(rule="floor", against=f"efficiency {minimum:g}", outcome=found.outcome, reason=reason)
