"""The pages of a report folder: of each run, of a machine's history, and of all machines.

A machine's history has a curve for each cell, what changed on the machine, and its runs. Whatever writes a page raises
an OSError where its folder cannot be written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from suite.records import history
from suite.records.baselines import Baseline
from suite.records.files import RecordError, is_inside, read_inside, write_atomically
from suite.records.history import MAX_CELLS, MAX_RUNS, Digest, Event, History, PastRun, Series
from suite.records.record import RECORD, Record
from suite.render import figures, html, markdown
from suite.render.document import (
    Axis,
    Block,
    Chart,
    Charts,
    Document,
    Facts,
    First,
    Link,
    Mark,
    Point,
    Section,
    Table,
    Text,
    Value,
)
from suite.render.document import Series as Curve
from suite.render.figures import plural

REPORT, SUMMARY, INDEX = "report.html", "summary.md", "index.html"
OVERVIEW = "Made from the newest record of each machine; python -m suite render makes it again."
TICKS = 5
MAX_EVENTS = 6  # drawn in a chart, the newest
MAX_MACHINES = 200
DATE = len("2026-01-01")
FILTERS = ("trainer", "workload", "mode", "k")
RUNS = ("run", "began (UTC)", "commit", "verdicts", "host", "note", "report", "summary", "record")
OF_RECORDS = "Made from the records under runs/; python -m suite render makes it again."
MACHINES = ("machine", "runs", "newest (UTC)", "its verdicts", "processor", "GPUs")


def write_run(folder: Path, record: Record, baseline: Baseline | None) -> None:
    """Write the pages of a run into its folder.

    Of its machine's baseline only runs that were accepted before this one count: a page written again says the same.
    """
    if baseline is not None:  # ids begin with the time of their run
        earlier = tuple(run for run in baseline.runs if run.run_id < record.run_id)
        baseline = baseline.model_copy(update={"runs": earlier})
    write_atomically(folder / REPORT, html.render(record, baseline))
    write_atomically(folder / SUMMARY, markdown.render(record))


def write_index(machine: Path) -> Path:
    """Write a machine's history into its folder, and return its path."""
    path, above = machine / INDEX, (machine.parent / INDEX).is_file()
    links = (("../index.html", "All machines"),) if above else ()
    write_atomically(path, html.write(document(history.read(machine)), links, OF_RECORDS))
    return path


def write_overview(reports: Path) -> Path | None:
    """Write the page above all machines of a report folder, and return its path; None for a single machine.

    Only a command writes it: a run must not change a repository. A file that is not ours stays as it is.
    """
    path, rows = reports / INDEX, list(_machines(reports))
    if len(rows) < 2 or (path.exists() and OVERVIEW not in path.read_text(encoding="utf-8", errors="replace")):
        return None
    title = f"Scaling on {plural(len(rows), 'machine')}"
    table = Table.of("All machines", MACHINES, rows, numbers=("runs",))
    page = Document(title, First("", title), (Section("machines", "Machines", (table,)),))
    write_atomically(path, html.write(page, made=OVERVIEW))
    return path


def document(history: History) -> Document:
    """Return a machine's history: a curve for each cell, what changed on the machine, and all runs."""
    runs = [_row(number, run) for number, run in reversed(list(enumerate(history.runs, 1)))]
    facts = [fact for run in history.runs[-1:] for fact in figures.facts(run.machine, run.environment)]
    changes = [_change(history, event) for event in reversed(history.events)]
    about_runs: list[Block] = [Facts(tuple(facts))] if facts else []
    if runs:
        caption = "All runs, the newest first"
        about_runs.append(Table.of(caption, RUNS, runs, numbers=RUNS[:1]))
    no_change = Text("No version and no host has changed between these runs.")
    changed = Table.of("Versions and hosts that changed, the newest first", ("run", "began", "what"), changes)
    skipped = Table.of("Folders whose record could not be used", ("folder", "why"), history.skipped)
    sections = (
        Section("cells", "Cells", tuple(_cells(history))),
        Section(
            "changes", "What changed on the machine", (changed if changes else no_change, Text(_CHANGES, muted=True))
        ),
        Section("runs", "Runs", tuple(about_runs)),
        Section("unread", "Not read", (skipped,) if history.skipped else ()),
    )
    title = f"Scaling history of {history.machine_key}"
    first = First("", title, _summary(history), notes=tuple(_notes(history)))
    return Document(title, first, tuple(section for section in sections if section.blocks))


_CHANGES = (
    "A host's run is compared with its previous one. Curves decide nothing: a verdict comes from a base in the "
    "same run."
)
_CURVES = (
    "Seconds an epoch with their 95 % intervals over the sessions of each run, on a logarithmic axis; runs differ by "
    "more than that. Vertical lines are changes on the machine. The numbers of the runs are those of the table below."
)


def _summary(history: History) -> str:
    if not history.runs:
        return "No run of this machine could be read yet."
    ends = [run.started_utc[:DATE] for run in (history.runs[0], history.runs[-1])]
    hosts = len({run.machine.host for run in history.runs})
    accepted = sum(run.accepted for run in history.runs)
    return (
        f"{plural(len(history.runs), 'run')} from {ends[0]} to {ends[1]} on {plural(hosts, 'host')}, {accepted} of "
        f"them accepted; {plural(len(history.cells), 'cell')}."
    )


def _notes(history: History) -> Iterable[str]:
    if history.older:
        yield f"Not on this page: {plural(history.older, 'older run')}; it shows the newest {MAX_RUNS}."
    if history.left_out:
        yield f"Not on this page: {plural(history.left_out, 'more cell')}; it shows {MAX_CELLS}."
    if history.baseline_problem:
        yield f"Which runs are accepted is not known: baseline.json: {history.baseline_problem}"


def _cells(history: History) -> Iterable[Block]:
    if history.cells:
        yield Charts(tuple(_chart(history, series) for series in history.cells), filters=FILTERS)
        yield Text(_CURVES, muted=True)
    else:
        yield Text("No cell was timed.")


def _row(number: int, run: PastRun) -> tuple[Value, ...]:
    """Return a line of the table of runs, with a link to each page that its folder has."""
    notes = (("accepted", run.accepted), ("cut short", run.interrupted))
    folder = quote(os.fsencode(run.folder))
    pages = {name: Link(name, f"runs/{folder}/{name}") for name in run.pages}
    return (
        str(number),
        figures.when(run.started_utc),
        figures.commit(run.environment),
        figures.headline(run.outcomes),
        run.machine.host,
        ", ".join(text for text, holds in notes if holds),
        *(pages.get(name, "") for name in ("report.html", "summary.md", RECORD)),
    )


def _change(history: History, event: Event) -> tuple[str, str, str]:
    """Return a line of the table of changes: the run, when it began, and what changed with it."""
    return str(event.run + 1), history.runs[event.run].started_utc[:DATE], event.text


def _chart(history: History, series: Series) -> Chart:
    holding = {number: run for number, run in enumerate(history.runs, 1) if series.identity in run.cells}
    points = {number: _point(number, run, series) for number, run in holding.items()}
    drawn = [Curve("time", tuple(points.values()))]
    if accepted := tuple(points[number] for number, run in holding.items() if run.run_id in series.accepted):
        drawn.append(Curve("accepted", accepted, kind="base", joined=False))
    *_, newest = holding.values()
    newest_s, runs = figures.interval(newest.cells[series.identity].sec_per_epoch, ".3g"), len(history.runs)
    ticks = tuple((float(number), str(number)) for number in range(1, runs + 1, math.ceil(runs / TICKS)))
    events = [Mark(event.run + 0.5, f"run {event.run + 1}: {event.text}") for event in history.events]
    return Chart(
        title=series.name,
        x=Axis("run", ticks=ticks, include=(1.0, float(runs)), form=".0f"),  # the same in every chart of the page
        y=Axis("seconds an epoch", log=True),
        series=tuple(drawn),
        marks=tuple(events[-MAX_EVENTS:]),
        groups=series.place,
        description=f"{plural(len(points), 'run')}, the newest {newest_s} seconds an epoch",
    )


def _point(number: int, run: PastRun, series: Series) -> Point:
    past = run.cells[series.identity]
    notes = [past.outcome, run.started_utc[:DATE], f"commit {figures.commit(run.environment)}"]
    if past.efficiency is not None:
        notes.append(f"efficiency {figures.interval(past.efficiency, '.2f')}")
    if past.accuracy is not None:
        notes.append(f"accuracy {figures.number(past.accuracy, '.3f')}")
    marks = (("accepted", run.run_id in series.accepted), ("pinned", run.run_id == series.pin))
    return Point.of(number, past.sec_per_epoch, ", ".join([*notes, *(text for text, holds in marks if holds)]))


def _machines(reports: Path) -> Iterator[tuple[Value, ...]]:
    """Yield a line of `MACHINES` for each machine of a report folder, with the newest run of it that can be read."""
    folders = sorted(path for path in reports.glob("*") if (path / "runs").is_dir() and is_inside(reports, path))
    for folder in folders[:MAX_MACHINES]:
        paths = sorted(folder.glob(f"runs/*/{RECORD}"), key=lambda path: path.parent.name)
        shown: tuple[str, ...] = ("-", "cannot be read", "", "")
        if paths:
            with suppress(RecordError):
                newest = read_inside(folder, paths[-1], Digest)
                verdicts = figures.headline(cell.outcome.value for cell in newest.cells)
                processor = "" if newest.machine.gpus else newest.machine.cpu_model
                shown = (figures.when(newest.started_utc), verdicts, processor, ", ".join(newest.machine.gpus))
        yield (Link(folder.name, f"{quote(os.fsencode(folder.name))}/index.html"), str(len(paths)), *shown)
