"""The pages made from records: `report.html` and `summary.md` of a run, `index.html` of a machine and of all."""

from __future__ import annotations

from pathlib import Path

from suite.records import history
from suite.records.baselines import Baseline
from suite.records.files import write_atomically
from suite.records.record import Record
from suite.render import html, index, markdown

REPORT, SUMMARY, INDEX = "report.html", "summary.md", "index.html"
OVERVIEW = "Made from the newest record of each machine; python -m suite render makes it again."


def write_run(folder: Path, record: Record, baseline: Baseline | None) -> None:
    """Write the pages of a run into its folder.

    Of its machine's baseline only runs that were accepted before this one count: a page written again says the same.

    Raises:
        OSError: the folder cannot be written.
    """
    if baseline is not None:  # ids begin with the time of their run
        earlier = tuple(run for run in baseline.runs if run.run_id < record.run_id)
        baseline = baseline.model_copy(update={"runs": earlier})
    write_atomically(folder / REPORT, html.render(record, baseline))
    write_atomically(folder / SUMMARY, markdown.render(record))


def write_index(machine: Path) -> Path:
    """Write a machine's history into its folder, and return its path.

    Raises:
        OSError: the folder cannot be written.
    """
    path = machine / INDEX
    write_atomically(path, index.render(history.read(machine), above=(machine.parent / INDEX).is_file()))
    return path


def write_overview(reports: Path) -> Path | None:
    """Write the page above all machines of a report folder, and return its path; None for a single machine.

    Only a command writes it: a run must not change a repository. A file that is not ours stays as it is.

    Raises:
        OSError: the folder cannot be written.
    """
    path, found = reports / INDEX, index.machines(reports)
    if len(found) < 2 or (path.exists() and OVERVIEW not in path.read_text(encoding="utf-8", errors="replace")):
        return None
    write_atomically(path, html.write(index.overview(found), made=OVERVIEW))
    return path
