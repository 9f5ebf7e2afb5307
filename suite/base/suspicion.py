"""What to do about a cell that the stored baseline does not clear: rebuild the baseline's commit, measure it beside.

Runs of other times face everything that changed on the machine since, so only their PASS stands alone. For every other
cell the commits of its newest accepted run and of its pin are rebuilt with today's interpreter, and what is found
beside them counts in the stored verdict's place.
"""

from __future__ import annotations

from suite import baselines
from suite.base.bases import Base, of_ref
from suite.baselines import AcceptedRun
from suite.cells import Cell, Side
from suite.record import CellRecord, CheckRecord, Record, interval
from suite.run import judging
from suite.run.measurement import Measurement
from suite.verdict import Outcome, Verdict
from suite.verdict.stored import RunSpread, against_pin, against_runs

ACCEPTED, PINNED = "accepted runs", "the pinned run"
Rebuild = dict[Side, Base]


def hold_against_stored(run: Measurement, draft: Record) -> None:
    """Judge every measured cell by the accepted runs, the newest ones and the pin; fills `run.stored`.

    Args:
        run: what was measured.
        draft: the record of it so far.
    """
    tolerance, comparisons = run.config.tolerance, judging.comparisons(run)
    for cell, found in zip(run.cells, draft.cells, strict=True):
        accepted = run.baseline.comparable(found, draft)
        if found.sec_per_epoch is None or not accepted:
            continue
        own, learned = baselines.measured(found, draft), _run_spread(run, cell)
        checks = [_check(ACCEPTED, against_runs(own, accepted, tolerance, comparisons, learned))]
        pin = run.baseline.pin(found, draft)
        if pin is not None:
            checks.append(_check(PINNED, against_pin(own, pin, accepted, tolerance, comparisons, learned)))
        run.stored[cell] = tuple(checks)


def suspects(run: Measurement, draft: Record) -> tuple[Rebuild, list[Cell]]:
    """The commits to rebuild, and the cells to measure beside them.

    Cells of one session share its bases. Where newest runs are of different commits, those of the first suspect are
    rebuilt and the other cells keep their stored verdict.
    """
    found: dict[Cell, Rebuild] = {}
    for cell, measured in zip(run.cells, draft.cells, strict=True):
        if any(check.outcome is not Outcome.PASS for check in run.stored.get(cell, ())):
            found[cell] = _rebuild(run, measured, draft)
    chosen = next((bases for bases in found.values() if bases), {})
    return chosen, [cell for cell, bases in found.items() if chosen and bases == chosen]


def supersede(run: Measurement, draft: Record) -> None:
    """Let what was found beside a rebuilt baseline count in place of the stored verdict, as far as it can.

    Each rebuilt commit answers for its own: beside the newest run's nothing is learned of a pin whose commit is gone.
    It runs on today's versions. Where those have changed since, nothing found beside it speaks for them: its FAIL
    stands, but a PASS leaves what the stored runs say of the whole in doubt.
    """
    measured = dict(zip(run.cells, draft.cells, strict=True))
    for cell in run.beside:
        rebuilt = {
            ACCEPTED: run.baseline.latest(measured[cell], draft),
            PINNED: run.baseline.pinned(measured[cell], draft),
        }
        run.stored[cell] = tuple(_superseded(run, cell, check, rebuilt[check.against]) for check in run.stored[cell])


def _run_spread(run: Measurement, cell: Cell) -> RunSpread | None:
    """How runs of a cell differ on this machine, as far as a calibration's sessions show it."""
    spread = run.spread(cell)
    return None if spread is None or not spread.unpaired_sd else RunSpread(spread.unpaired_sd, spread.sessions - 1)


def _superseded(run: Measurement, cell: Cell, check: CheckRecord, rebuilt: AcceptedRun | None) -> CheckRecord:
    commit = None if rebuilt is None else rebuilt.environment.commit
    side = next((side for side, base in run.bases.items() if base.commit == commit), None)
    if rebuilt is None or side is None:
        return check
    if failed := run.lost.get(run.compared(cell)[side]):
        return check.model_copy(update={"reason": f"{check.reason}; its commit could not be rebuilt: {failed.cause}"})
    changed = _changed(run, rebuilt)
    doubt = changed and judging.beside(run, cell, side).outcome is Outcome.PASS
    return check.model_copy(update=_doubted(check, changed) if doubt else {"counts": False})


def _doubted(check: CheckRecord, changed: str) -> dict[str, object]:
    if check.outcome is Outcome.PASS:
        return {}
    reason = (
        f"{check.reason}; beside the rebuilt commit the code is not slower, but {changed} since: compare with the "
        "older environment (--scaling-against python:...)"
    )
    return {"outcome": Outcome.INCONCLUSIVE, "reason": reason}


def _check(against: str, found: Verdict) -> CheckRecord:
    ratio = found.ratio and interval(found.ratio)
    return CheckRecord(rule="stored", against=against, outcome=found.outcome, reason=found.reason, ratio=ratio)


def _rebuild(run: Measurement, cell: CellRecord, draft: Record) -> Rebuild:
    """The bases of one cell; without those whose commit is not in the repository any more."""
    newest, pin = run.baseline.latest(cell, draft), run.baseline.pinned(cell, draft)
    wanted: dict[Side, AcceptedRun] = {"base": newest} if newest is not None else {}
    if pin is not None and newest is not None and pin.environment.commit != newest.environment.commit:
        wanted["pinned"] = pin
    found: Rebuild = {}
    for side, accepted in wanted.items():
        try:
            commit = of_ref(accepted.environment.commit, run.config.root).commit
        except ValueError:
            continue
        what = "accepted" if side == "base" else "pinned"
        found[side] = Base("ref", f"the {what} run {accepted.run_id}, rebuilt", commit=commit)
    return found


def _changed(run: Measurement, rebuilt: AcceptedRun) -> str:
    """Which versions differ from those that an accepted run had, in words."""
    before, now = rebuilt.environment.versions, run.versions.get("candidate", {})
    changes = (name for name in now if before.get(name, now[name]) != now[name])
    return ", ".join(f"{name} changed from {before[name]} to {now[name]}" for name in changes)
