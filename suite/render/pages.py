"""The pages made from records: a run's `report.html` and `summary.md`, and the `index.html` of its machine."""

from __future__ import annotations

from pathlib import Path

from suite.records import history
from suite.records.baselines import Baseline
from suite.records.record import Record, write_atomically
from suite.render import html, index, markdown

REPORT, SUMMARY, INDEX = "report.html", "summary.md", "index.html"


def write_run(folder: Path, record: Record, baseline: Baseline | None) -> None:
    """Write what a person reads of a run, beside its record.

    Args:
        folder: of the run.
        record: what it says.
        baseline: of its machine; only what had been accepted before the run counts.

    Raises:
        OSError: the folder cannot be written.
    """
    known = None if baseline is None else _before(baseline, record)
    write_atomically(folder / REPORT, html.render(record, known))
    write_atomically(folder / SUMMARY, markdown.render(record))


def write_index(machine: Path) -> Path:
    """Write a machine's history into its folder, and say where that is.

    Raises:
        OSError: the folder cannot be written.
    """
    path = machine / INDEX
    write_atomically(path, index.render(history.read(machine)))
    return path


def _before(baseline: Baseline, record: Record) -> Baseline:
    """A page that is written again must not compare a run with later ones; ids begin with the time of their run."""
    earlier = tuple(run for run in baseline.runs if run.run_id < record.run_id)
    return baseline.model_copy(update={"runs": earlier})
