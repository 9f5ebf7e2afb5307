"""How this run, or one like it, becomes the accepted baseline, and who looks at it."""

from __future__ import annotations

from dataclasses import dataclass

from suite.records.baselines import AcceptedRun, Baseline
from suite.records.record import Record
from suite.render import commands
from suite.verdict import Outcome


@dataclass(frozen=True)
class View:
    """What the template shows.

    Attributes:
        refused: why a run like this cannot be accepted; empty where it can.
        command: that measures again and accepts.
        accepted: runs in the baseline so far; None where it was not read.
        included: whether this run is one of them.
        path: of the baseline, below the report folder.
    """

    refused: str
    command: str
    accepted: int | None
    included: bool
    path: str


def newest(record: Record, baseline: Baseline | None) -> AcceptedRun | None:
    """The newest accepted run that is not this one."""
    runs = baseline.runs if baseline else ()
    return next((run for run in reversed(runs) if run.run_id != record.run_id), None)


def view(record: Record, baseline: Baseline | None) -> View:
    """What to type, by what the cells came to; `suite.records.baselines.accept` holds to the same."""
    outcomes = {cell.outcome for cell in record.cells}
    refused = ""
    if record.interrupted:
        refused = "This run was cut short, and such a run is never a baseline."
    elif Outcome.ERROR in outcomes:
        refused = "This run has an ERROR, and such a run is never a baseline: mend it and run again."
    value = "slower" if Outcome.FAIL in outcomes else ""
    return View(
        refused=refused,
        command=commands.accept(record, value),
        accepted=len(baseline.runs) if baseline else None,
        included=baseline is not None and any(run.run_id == record.run_id for run in baseline.runs),
        path=f"{record.machine.key}/baseline.json",
    )
