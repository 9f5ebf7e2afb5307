"""A machine's history as one page, with a curve for each cell, and a page above all machines."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from suite.records.files import RecordError, is_inside, read_inside
from suite.records.history import MAX_CELLS, MAX_RUNS, Digest, Event, History, PastRun, Series
from suite.records.history import Point as Past
from suite.records.record import RECORD
from suite.render import figures, html
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

TICKS = 5
MAX_EVENTS = 6  # drawn in a chart, the newest
MAX_MACHINES = 200
DATE = len("2026-01-01")
FILTERS = ("trainer", "workload", "mode", "k")
RUNS = ("run", "began (UTC)", "commit", "verdicts", "host", "note", "report", "summary", "record")
MADE = "Made from the records under runs/; python -m suite render makes it again."


def render(history: History, *, above: bool = False) -> str:
    """Return the page, for the folder of the machine, above `runs/`; `above` is whether all machines have one."""
    return html.write(document(history), (("../index.html", "All machines"),) if above else (), MADE)


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
    points = [_point(history, point) for point in series.points]
    drawn = [Curve("time", tuple(points))]
    accepted = tuple(point for point, of_run in zip(points, series.points, strict=True) if of_run.accepted)
    if accepted:
        drawn.append(Curve("accepted", accepted, kind="base", joined=False))
    newest, runs = figures.interval(series.points[-1].sec_per_epoch, ".3g"), len(history.runs)
    ticks = tuple((float(number), str(number)) for number in range(1, runs + 1, math.ceil(runs / TICKS)))
    events = [Mark(event.run + 0.5, f"run {event.run + 1}: {event.text}") for event in history.events]
    return Chart(
        title=series.name,
        x=Axis("run", ticks=ticks, include=(1.0, float(runs)), form=".0f"),  # the same in every chart of the page
        y=Axis("seconds an epoch", log=True),
        series=tuple(drawn),
        marks=tuple(events[-MAX_EVENTS:]),
        groups=series.place,
        description=f"{plural(len(points), 'run')}, the newest {newest} seconds an epoch",
    )


def _point(history: History, point: Past) -> Point:
    run, time = history.runs[point.run], point.sec_per_epoch
    notes = [point.outcome, run.started_utc[:DATE], f"commit {figures.commit(run.environment)}"]
    if point.efficiency is not None:
        notes.append(f"efficiency {figures.interval(point.efficiency, '.2f')}")
    if point.accuracy is not None:
        notes.append(f"accuracy {figures.number(point.accuracy, '.3f')}")
    notes += [text for text, holds in (("accepted", point.accepted), ("pinned", point.pinned)) if holds]
    return Point.of(point.run + 1, time, ", ".join(notes))


class Overview(NamedTuple):
    """A machine as the page above all machines shows it."""

    key: str
    runs: int
    newest: Digest | None


def machines(reports: Path) -> list[Overview]:
    """Return the machines of a report folder, at most `MAX_MACHINES`, with the newest run of each that can be read."""
    found = []
    for folder in sorted(path for path in reports.glob("*") if (path / "runs").is_dir() and is_inside(reports, path)):
        paths = sorted(folder.glob(f"runs/*/{RECORD}"), key=lambda path: path.parent.name)
        newest = None
        if paths:
            try:
                newest = read_inside(folder, paths[-1], Digest)
            except RecordError:
                newest = None
        found.append(Overview(folder.name, len(paths), newest))
    return found[:MAX_MACHINES]


def overview(found: Iterable[Overview]) -> Document:
    """Return the page above all machines: a line for each, with a link to its history."""
    rows = [
        (
            Link(each.key, f"{quote(os.fsencode(each.key))}/index.html"),
            str(each.runs),
            figures.when(each.newest.started_utc) if each.newest else "-",
            figures.headline(cell.outcome.value for cell in each.newest.cells) if each.newest else "cannot be read",
            each.newest.machine.cpu_model if each.newest and not each.newest.machine.gpus else "",
            ", ".join(each.newest.machine.gpus) if each.newest else "",
        )
        for each in found
    ]
    columns = ("machine", "runs", "newest (UTC)", "its verdicts", "processor", "GPUs")
    title = f"Scaling on {plural(len(rows), 'machine')}"
    table = Table.of("All machines", columns, rows, numbers=("runs",), total=len(rows))
    return Document(title, First("", title), (Section("machines", "Machines", (table,)),))
