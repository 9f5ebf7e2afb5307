"""What accepted runs mean for a cell: their commits are rebuilt and measured beside it, and only that decides.

Runs of other times face everything that changed on the machine since, so their figures are shown and neither pass nor
fail a cell (`suite.verdict.stored`). The commits of a cell's newest accepted run and of its pin are rebuilt with
today's interpreter. A cell whose commit cannot be had stays INCONCLUSIVE, with the reason and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from suite.base.bases import of_ref
from suite.base.git import FULL_NAME
from suite.plan.base import Base
from suite.plan.cells import Cell, Side
from suite.records import baselines
from suite.records.baselines import AcceptedRun
from suite.records.differences import differences
from suite.records.record import CheckRecord, Record, interval
from suite.run import judging
from suite.run.observations import Observations
from suite.verdict import Outcome
from suite.verdict.stored import Difference, RunSpread, difference

ACCEPTED, PINNED = "accepted runs", "the pinned run"
BESIDE = "what was measured beside its rebuilt commit decides"
_BASE = "measure a base in the same run (--scaling-against=REF)"

_Find = Callable[[str | None], str]


class Rebuild(NamedTuple):
    """The accepted commits that a run rebuilds, and the cells that it measures beside them."""

    bases: dict[Side, Base]
    cells: list[Cell]


def rebuild(run: Observations, draft: Record) -> Rebuild:
    """What is measured beside which cells. Those of one run share its bases, so the bases of most cells are taken.

    Args:
        run: its datasets are known; nothing need be measured yet.
        draft: the record of it so far.
    """
    missing, groups = _missing(run), list[Rebuild]()
    for number, cell in enumerate(run.plan.cells):
        newest = _base("accepted", run.plan.baseline.latest(draft.cells[number], draft))
        pin = _base("pinned", run.plan.baseline.pinned(draft.cells[number], draft))
        bases: dict[Side, Base] = {}
        if newest and not missing(newest.commit):
            bases["base"] = newest
        if newest and pin and pin.commit != newest.commit and not missing(pin.commit):
            bases["pinned"] = pin
        group = next((group for group in groups if group.bases == bases), None)
        if group is None:
            groups.append(group := Rebuild(bases, []))
        group.cells.append(cell)
    return max((group for group in groups if group.bases), key=lambda group: len(group.cells), default=Rebuild({}, []))


def hold_against_stored(run: Observations, draft: Record) -> None:
    """Show what the accepted runs say of every measured cell; fills `run.stored`.

    A check counts, as INCONCLUSIVE, where the commit behind it was not measured beside the cell, and where versions
    have changed since the newest accepted run: the rebuilt commit runs on today's, so a PASS beside it does not speak
    of those. Versions between the pin and the newest run were there to be seen when the runs in between were accepted.

    Args:
        run: what was measured so far.
        draft: the record of it.
    """
    missing = _missing(run)
    for cell, found in zip(run.plan.cells, draft.cells, strict=True):
        accepted = run.plan.baseline.comparable(found, draft)
        if found.sec_per_epoch is None or not accepted:
            continue
        own, learned = baselines.measured(found, draft), _run_spread(run, cell)
        newest, pin = run.plan.baseline.latest(found, draft), run.plan.baseline.pin(found, draft)
        why = _open(run, cell, newest, missing) or _changed(run, cell, newest)
        checks = [_check(ACCEPTED, difference(own, accepted, learned), why)]
        if pin is not None:
            why = _open(run, cell, run.plan.baseline.pinned(found, draft), missing)
            checks.append(_check(PINNED, difference(own, accepted, learned, pin), why))
        run.stored[cell] = tuple(checks)


def _missing(run: Observations) -> _Find:
    """Tells why a commit cannot be rebuilt here; "" where it can. Git is asked once for each."""

    @cache
    def why(commit: str | None) -> str:
        if commit is None or not FULL_NAME.fullmatch(commit):
            return f"{commit!r} is not the full name of a commit"
        try:
            of_ref(commit, run.plan.config.root)
        except ValueError as error:
            return str(error)
        return ""

    return why


def _base(what: str, accepted: AcceptedRun | None) -> Base | None:
    if accepted is None:
        return None
    return Base("ref", f"the {what} run {accepted.run_id}, rebuilt", commit=accepted.environment.commit)


def _open(run: Observations, cell: Cell, accepted: AcceptedRun | None, missing: _Find) -> str:
    """Why an accepted run was not measured beside a cell, and what to do; "" where it was."""
    nothing, it = "figures of other times decide nothing, and", accepted and f"the commit of run {accepted.run_id}"
    if accepted is None:
        where = "a working tree with changes, or from outside of a git repository"
        return f"{nothing} they come from {where}: accept a run of a clean commit, or {_BASE}"
    if why := missing(accepted.environment.commit):
        remedy = f"{_BASE}, or take that run out of baseline.json"
        return f"{nothing} {it} cannot be rebuilt: {why}; {remedy}"
    side = next((side for side, base in run.bases.items() if base.commit == accepted.environment.commit), None)
    if side is None or cell not in run.beside:
        return f"{nothing} {it} was not measured here: run this cell by itself (-k {cell.id})"
    if failed := run.lost.get(run.compared(cell)[side]):
        return f"{nothing} {it} could not be measured: {failed.cause}"
    return ""


def _changed(run: Observations, cell: Cell, newest: AcceptedRun | None) -> str:
    """Which versions differ from those of the newest accepted run, where the code beside it is not slower; or ""."""
    side = next((side for side, base in run.bases.items() if newest and base.commit == newest.environment.commit), None)
    if newest is None or side is None or judging.beside(run, cell, side).outcome is not Outcome.PASS:
        return ""
    changes = differences(newest.environment.versions, run.versions.get("candidate", {}), common=True)
    changed = ", ".join(f"{name} changed from {before} to {now}" for name, before, now in changes)
    return changed and (
        f"beside the rebuilt commit the code is not slower, but {changed} since: compare with the older environment "
        "(--scaling-against=python:...), or accept this run"
    )


def _run_spread(run: Observations, cell: Cell) -> RunSpread | None:
    """How runs of a cell differ on this machine, as far as a calibration's sessions show it."""
    spread = run.plan.spread(cell)
    return None if spread is None else spread.of_runs


def _check(against: str, found: Difference, why: str) -> CheckRecord:
    return CheckRecord(
        rule="stored",
        against=against,
        outcome=Outcome.INCONCLUSIVE,
        reason=f"{found.said}; {why or BESIDE}",
        ratio=interval(found.ratio),
        counts=bool(why),
    )
