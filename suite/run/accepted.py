"""Accepted runs: their commits are rebuilt and measured in the same sessions as the candidate, and only that decides.

A time of another day differs by everything that changed on the machine since, so stored times are shown and decide
nothing (`suite.verdict.stored`). The commits of a cell's newest accepted run and of its pinned run are rebuilt with
today's interpreter. A cell whose commit was not measured here is INCONCLUSIVE, with the reason and what to type.

Accepted runs also show what the machine could do: where the same code, rebuilt or checked out, keeps less of k devices
than it did then, a FAIL names the machine and not the code (`suite.verdict.machine` has the rule).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from suite.base.bases import of_ref
from suite.base.git import FULL_NAME
from suite.plan.cells import Cell, Side
from suite.plan.config import Base
from suite.records.baselines import AcceptedRun, Identity
from suite.records.record import CheckRecord, Record, WaterfallRecord, differences
from suite.run import judging, samples
from suite.run.observations import Comparison, Observations
from suite.verdict import Outcome
from suite.verdict.machine import cause, machine
from suite.verdict.stored import Run, RunDifference, difference, hours_apart

LEVEL, PINNED = "accepted runs", "the pinned run"


def rebuild(run: Observations, draft: Record) -> Comparison:
    """Return the accepted commits to rebuild and the cells to compare with them.

    A run has one base of each side, and a cell is compared with those that are its own. The newest commit is the one
    that most cells need. Pins never move, so cells may keep different ones for good: each run draws one of them, so
    that every cell's drift is judged again and again. `draft` is the record of the run, of which the datasets must be
    known.
    """
    missing = _missing(run)
    offered: dict[Side, dict[Cell, AcceptedRun]] = {side: {} for side in judging.RULE_AGAINST}
    for cell, figures in zip(run.plan.cells, draft.cells, strict=True):
        if runs := run.plan.baseline.rebuildable(figures, draft):
            offered["base"][cell] = runs[-1]
            if runs[0].environment.commit != runs[-1].environment.commit:
                offered["pinned"][cell] = runs[0]
    bases, sides = dict[Side, Base](), dict.fromkeys(run.plan.cells, tuple[Side, ...]())
    apart = set[Cell]()
    for side, by_cell in offered.items():
        runs_of = {cell: kept for cell, kept in by_cell.items() if kept.environment.commit not in missing}
        needed = Counter(kept.environment.commit for kept in runs_of.values())
        if not needed:
            continue
        drawn, most = random.Random(run.plan.seed).choice(list(needed)), needed.most_common(1)[0][0]
        commit, what = (drawn, "pinned") if side == "pinned" else (most, "accepted")
        for cell, kept in runs_of.items():
            if kept.environment.commit == commit:
                bases.setdefault(side, Base("ref", f"the {what} run {kept.run_id}, rebuilt", commit=commit))
                sides[cell] += (side,)
            else:
                apart.add(cell)
    if not bases:
        return Comparison()
    cells = run.plan.cells
    return Comparison(
        bases, tuple(cell for cell in cells if sides[cell]), sides, tuple(cell for cell in cells if cell in apart)
    )


def checks(run: Observations, draft: Record) -> dict[Cell, tuple[CheckRecord, ...]]:
    """Return what the accepted runs say of every measured cell.

    The ratio to stored times is shown. It becomes an INCONCLUSIVE that counts, with the reason, where the commit behind
    it was not measured in the same sessions, and where versions have changed since the newest accepted run: the rebuilt
    commit runs on today's versions, so a PASS against it says nothing about the change. A version that changed between
    the pinned and the newest run was shown when the runs in between were accepted. Where the run rebuilds another
    cell's pinned commit, this cell's drift is left to other runs. `draft` is the record of the run so far.
    """
    missing, by_cell = _missing(run), {}
    for cell, figures in zip(run.plan.cells, draft.cells, strict=True):
        accepted = run.plan.baseline.comparable(figures, draft)
        if figures.sec_per_epoch is None or not accepted:
            continue
        own = Run(math.log(figures.sec_per_epoch.estimate), figures.sessions, draft.machine.host)
        rebuildable = run.plan.baseline.rebuildable(figures, draft)
        newest = rebuildable[-1] if rebuildable else None
        why = _unmeasured(run, cell, newest, missing) or _changed(run, cell, newest)
        shown = [_check(LEVEL, difference(own, accepted), why)]
        for pin in rebuildable[:1]:
            drawn, commit = run.comparison.bases.get("pinned"), pin.environment.commit
            elsewhere = commit not in missing and drawn is not None and drawn.commit != commit
            if commit != rebuildable[-1].environment.commit and (why := _unmeasured(run, cell, pin, missing)):
                then = difference(own, accepted, pin.time(Identity.of(figures, draft)))
                shown.append(_check(PINNED, then, why, counts=not elsewhere))
        if cell.world_size > 1 and not run.plan.config.devices.oversubscribed(cell.world_size):
            shown.append(_check_machine(run, cell, own, newest, accepted, figures.waterfalls))
        by_cell[cell] = tuple(shown)
    return by_cell


def _missing(run: Observations) -> dict[str | None, str]:
    """Return the accepted commits that cannot be rebuilt here, and why."""
    missing: dict[str | None, str] = {}
    for commit in {kept.environment.commit for kept in run.plan.baseline.runs}:
        if run.plan.config.devices.hosts > 1:
            missing[commit] = "on several hosts a base must be a trainer"
            continue
        if not FULL_NAME.fullmatch(commit):
            missing[commit] = f"{commit!r} is not the full name of a commit"
            continue
        try:
            of_ref(commit, run.plan.config.root)
        except ValueError as error:
            missing[commit] = str(error)
    return missing


def _unmeasured(run: Observations, cell: Cell, accepted: AcceptedRun | None, missing: Mapping[str | None, str]) -> str:
    """Return why an accepted run was not measured in the same sessions, and the remedy; "" where it was."""
    other = "module:Class" if run.plan.config.devices.hosts > 1 else "REF"
    remedy = f"measure a base in the same run (--scaling-against={other})"
    if accepted is None:
        where = "a working tree with changes, or from outside of a git repository"
        words = run.plan.baseline.runs[-1].environment.commit_problem
        where += f" ({words})" if words else ""
        return f"they come from {where}: accept a run of a clean commit, or {remedy}"
    commit = f"the commit of run {accepted.run_id}"
    if why := missing.get(accepted.environment.commit):
        return f"{commit} cannot be rebuilt: {why}; {remedy}, or take that run out of baseline.json"
    side = _side_of(run, cell, accepted)
    if side is None:
        return f"{commit} was not measured here: run this cell by itself (-k {cell.id})"
    if failed := run.lost.get(run.arms(cell)[side]):
        return f"{commit} could not be measured: {failed.cause}"
    return ""


def _changed(run: Observations, cell: Cell, newest: AcceptedRun | None) -> str:
    """Return which versions changed since the newest accepted run, where its rebuilt commit is a PASS; else ""."""
    if newest is None or (side := _side_of(run, cell, newest)) is None:
        return ""
    if judging.against(run, cell, side).outcome is not Outcome.PASS:
        return ""
    changed = _changes_since(run, newest)
    return changed and (
        f"the code is not slower than the rebuilt commit, but {changed} since: compare with the older environment "
        "(--scaling-against=python:...) or the older driver, or accept this run"
    )


def _check(against: str, shown: RunDifference, why: str, *, counts: bool = True) -> CheckRecord:
    return CheckRecord(
        rule="stored",
        against=against,
        outcome=Outcome.INCONCLUSIVE,
        reason="; ".join(filter(None, [f"{shown.said}: stored times decide nothing", why])),
        ratio=shown.ratio,
        counts=bool(why) and counts,
    )


def _check_machine(
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
    changed = _changes_since(run, newest) if newest is not None else ""
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


def _side_of(run: Observations, cell: Cell, accepted: AcceptedRun) -> Side | None:
    """Return the base that a cell is compared with and that is the commit of an accepted run."""
    arms = run.arms(cell) if cell in run.comparison.cells else {}
    bases, commit = run.comparison.bases, accepted.environment.commit
    return next((side for side in bases if side in arms and bases[side].commit == commit), None)


def _sides_of(run: Observations, cell: Cell, accepted: AcceptedRun | None) -> list[Side]:
    """Return the sides of this run on which the commit of an accepted run was measured, a base before the candidate."""
    if accepted is None:
        return []
    side = _side_of(run, cell, accepted)
    sides: list[Side] = [] if side is None else [side]
    if (accepted.environment.commit, False) == (run.plan.commit, run.plan.dirty):
        sides.append("candidate")
    return sides


def _changes_since(run: Observations, newest: AcceptedRun) -> str:
    """Return what else than the code may have changed a step's time since an accepted run, in words."""
    before, now = dict(newest.environment.versions), dict(run.versions.get("candidate", {}))
    if newest.driver and run.plan.machine.driver:
        before["driver"], now["driver"] = newest.driver, run.plan.machine.driver
    changes = differences(before, now, common=True)
    return ", ".join(f"{name} changed from {then} to {today}" for name, then, today in changes)
