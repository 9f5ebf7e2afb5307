"""The machine, judged by the accepted commit: the same code keeps less of k devices than it did in accepted runs.

The commit may be rebuilt or checked out. A FAIL of this rule names the machine, and not the code.
`suite.verdict.machine` has the rule itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from suite.plan.cells import Cell, Side
from suite.records.baselines import AcceptedRun
from suite.records.differences import differences
from suite.records.record import CheckRecord, WaterfallRecord
from suite.run import judging, samples
from suite.run.observations import Observations
from suite.verdict import Outcome
from suite.verdict.machine import cause, machine
from suite.verdict.stored import Run, hours_apart


def check(
    run: Observations,
    cell: Cell,
    own: Run,
    newest: AcceptedRun | None,
    accepted: Sequence[Run],
    waterfalls: Sequence[WaterfallRecord],
) -> CheckRecord:
    """Judge the machine by the accepted commit, whose code is the same as then; only a FAIL counts."""
    sides, arms = _sides_of(run, cell, newest), run.arms(cell)
    # Where a base failed, the candidate comes first.
    best_first = sorted(sides, key=lambda side: not run.lost.keys().isdisjoint((arms[side], arms[side].on_one)))
    by_side = {side: samples.log_efficiencies(run, arms[side]) for side in best_first}
    side, logs = next(((side, logs) for side, logs in by_side.items() if logs), ("candidate", []))
    behind = samples.log_ratios(run, arms["candidate"], arms[side])  # zeros for the candidate itself
    here = hours_apart([each for each in accepted if each.host == own.host])
    changed = changes_since(run, newest) if newest is not None else ""
    verdict = machine(
        logs,
        own.log_t - fmean(behind or [0.0]),
        here,
        judging.comparisons(run),
        tolerance=run.plan.config.tolerance,
        changed=bool(changed),
    )
    fails, why = verdict.outcome is Outcome.FAIL, [verdict.reason]
    taken_apart = [fall for fall in waterfalls if fall.side in sides]
    if fails and taken_apart:
        fall = max(taken_apart, key=lambda fall: fall.sessions)
        why.append(cause(fall.shares, fall.dfs, [each.parts for each in here]))
    if fails and changed:
        why.append(f"since then {changed}")
    return CheckRecord(
        rule="machine",
        against="accepted runs of this host",
        outcome=verdict.outcome,
        reason="; ".join(filter(None, why)),
        kind=verdict.why.kind,
        counts=fails,
    )


def side_of(run: Observations, cell: Cell, accepted: AcceptedRun) -> Side | None:
    """Return the base that a cell is compared with and that is the commit of an accepted run."""
    arms = run.arms(cell) if cell in run.comparison.cells else {}
    bases, commit = run.comparison.bases, accepted.environment.commit
    return next((side for side in bases if side in arms and bases[side].commit == commit), None)


def _sides_of(run: Observations, cell: Cell, accepted: AcceptedRun | None) -> list[Side]:
    """Return the sides of this run on which the commit of an accepted run was measured, a base before the candidate."""
    if accepted is None:
        return []
    side = side_of(run, cell, accepted)
    sides: list[Side] = [] if side is None else [side]
    if (accepted.environment.commit, False) == (run.plan.commit, run.plan.dirty):
        sides.append("candidate")
    return sides


def changes_since(run: Observations, newest: AcceptedRun) -> str:
    """Return what else than the code may have changed a step's time since an accepted run, in words."""
    before, now = dict(newest.environment.versions), dict(run.versions.get("candidate", {}))
    if newest.driver and run.plan.machine.driver:
        before["driver"], now["driver"] = newest.driver, run.plan.machine.driver
    changes = differences(before, now, common=True)
    return ", ".join(f"{name} changed from {then} to {today}" for name, then, today in changes)
