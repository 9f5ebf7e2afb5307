"""A machine's history as one page: what changed, each cell's series, and the way to every run's own report."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from suite.records.changes import ALPHA, MIN_RUNS
from suite.records.history import MAX_CELLS, MAX_RUNS, Event, History, Mark, PastRun, Point, Series
from suite.render import figures
from suite.render.html import chart
from suite.render.html.bounds import bounded
from suite.render.html.environment import page
from suite.verdict.outcome import percent

TICKS = 5
MAX_EVENTS = 6  # versions and hosts named in one chart, the newest
DATE = len("2026-01-01")
MINUTE = len("2026-01-01T00:00")
COMMIT = 12


class Row(NamedTuple):
    """A line of the table of runs.

    Attributes:
        note: what is particular about it.
        folder: its name, as an address has it.
        pages: those that lie there.
    """

    number: int
    started: str
    commit: str
    verdicts: str
    host: str
    note: str
    folder: str
    pages: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """What the template shows beside the charts; `limits` are sentences about what is not on the page."""

    machine_key: str
    lead: str
    facts: tuple[tuple[str, str], ...]
    runs: tuple[Row, ...]
    limits: tuple[str, ...]
    alpha: float = ALPHA
    min_runs: int = MIN_RUNS


def render(history: History) -> str:
    """The page, to lie in the machine's folder, above `runs/`."""
    marks = [(series.name, mark) for series in history.cells for mark in series.marks]
    marks.sort(key=lambda found: found[1].run, reverse=True)
    return page(
        "index.html.j2",
        view=View(
            machine_key=history.machine_key,
            lead=_lead(history),
            facts=_facts(history),
            runs=tuple(_row(number, run) for number, run in reversed(list(enumerate(history.runs, 1)))),
            limits=tuple(_limits(history)),
        ),
        changes=bounded((name, *_change(history, mark)) for name, mark in marks),
        charts=[chart.figure(_chart(history, series)) for series in history.cells],
        skipped=bounded(history.skipped),
    )


def _lead(history: History) -> str:
    if not history.runs:
        return "No run of this machine could be read yet."
    first, last = (history.runs[index].started_utc[:DATE] for index in (0, -1))
    accepted = sum(run.accepted for run in history.runs)
    hosts = len({run.machine.host for run in history.runs})
    return (
        f"{len(history.runs)} run(s) from {first} to {last} on {hosts} host(s), {accepted} of them accepted; "
        f"{len(history.cells)} cell(s)."
    )


def _facts(history: History) -> tuple[tuple[str, str], ...]:
    """The machine as the newest run found it."""
    if not history.runs:
        return ()
    newest = history.runs[-1]
    about = newest.machine
    facts = {
        "CPU": f"{about.cpu_model}, {about.cpu_cores} cores",
        "GPUs": ", ".join(about.gpus),
        "driver": about.driver,
        "system": about.system,
        "versions": ", ".join(f"{name} {version}" for name, version in newest.environment.versions.items()),
    }
    return tuple((name, text) for name, text in facts.items() if text)


def _limits(history: History) -> Iterable[str]:
    if history.older:
        yield f"{history.older} older run(s) are not on this page: it holds the newest {MAX_RUNS}."
    if history.left_out:
        yield f"{history.left_out} further cell(s) are not on this page: it holds {MAX_CELLS}."
    if history.baseline_problem:
        yield f"Which runs are accepted is not known: baseline.json: {history.baseline_problem}"


def _row(number: int, run: PastRun) -> Row:
    outcomes = [(outcome, run.outcomes[outcome]) for outcome in figures.GRAVEST_FIRST if outcome in run.outcomes]
    notes = (("accepted", run.accepted), ("cut short", run.interrupted))
    return Row(
        number=number,
        started=run.started_utc[:MINUTE].replace("T", " "),
        commit=_commit(run),
        verdicts=", ".join(f"{count} {outcome.value}" for outcome, count in outcomes) or "no cells",
        host=run.machine.host,
        note=", ".join(text for text, holds in notes if holds),
        folder=quote(os.fsencode(run.folder)),
        pages=run.pages,
    )


def _commit(run: PastRun) -> str:
    return run.environment.commit[:COMMIT] + (" + changes" if run.environment.dirty else "")


def _change(history: History, mark: Mark) -> tuple[str, str, str, str]:
    """A mark in words: what, where, between which commits, and what else changed there."""
    before, after = history.runs[mark.before], history.runs[mark.run]
    where = f"run {mark.run + 1}, {after.started_utc[:DATE]}"
    return percent(mark.log_shift), where, f"{_commit(before)} → {_commit(after)}", _near(mark) or "-"


def _near(mark: Mark) -> str:
    return "; ".join(
        event.text if event.run == mark.run else f"{event.text} (run {event.run + 1})" for event in mark.near
    )


def _chart(history: History, series: Series) -> chart.Chart:
    points = tuple(_point(history, point) for point in series.points)
    accepted = tuple(drawn for drawn, point in zip(points, series.points, strict=True) if point.accepted)
    drawn = [chart.Series("time", points)]
    if accepted:
        drawn.append(chart.Series("accepted", accepted, kind="base", joined=False))
    if series.marks:
        drawn.append(chart.Series("level between marks", tuple(_levels(series)), kind="ideal"))
    newest = figures.interval(series.points[-1].sec_per_epoch, ".3g")
    return chart.Chart(
        title=series.name,
        x=chart.Axis("run", ticks=_numbers(len(history.runs)), include=(1.0, float(len(history.runs))), form=".0f"),
        y=chart.Axis("seconds an epoch", log=True),
        series=tuple(drawn),
        marks=tuple(_marks(series)),
        description=f"{len(points)} runs, the newest {newest} seconds an epoch; {len(series.marks)} change mark(s)",
    )


def _numbers(runs: int) -> tuple[tuple[float, str], ...]:
    """Whole numbers of runs, about `TICKS` of them; every chart of the page has the same."""
    return tuple((float(number), str(number)) for number in range(1, runs + 1, math.ceil(runs / TICKS)))


def _point(history: History, found: Point) -> chart.Point:
    run, time = history.runs[found.run], found.sec_per_epoch
    notes = [found.outcome, run.started_utc[:DATE], f"commit {_commit(run)}"]
    if found.efficiency is not None:
        notes.append(f"efficiency {figures.interval(found.efficiency, '.2f')}")
    if found.accuracy is not None:
        notes.append(f"accuracy {figures.number(found.accuracy, '.3f')}")
    notes += [text for text, holds in (("accepted", found.accepted), ("pinned", found.pinned)) if holds]
    return chart.Point(found.run + 1, time.estimate, time.low, time.high, ", ".join(notes))


def _levels(series: Series) -> Iterable[chart.Point]:
    """The median of each stretch between marks, as steps."""
    cuts = [mark.run for mark in series.marks]
    edges = [series.points[0].run, *cuts, series.points[-1].run + 1]
    for start, end in itertools.pairwise(edges):
        level = statistics.median(p.sec_per_epoch.estimate for p in series.points if start <= p.run < end)
        yield chart.Point(start + 0.5, level)
        yield chart.Point(end + 0.5, level)


def _marks(series: Series) -> Iterable[chart.Mark]:
    """Changes of level with what is near them, and the newest other events; each line stands before its run."""
    for mark in series.marks:
        near = f", near it {_near(mark)}" if mark.near else ""
        yield chart.Mark(mark.run + 0.5, f"{percent(mark.log_shift)} from run {mark.run + 1}{near}")
    told: set[Event] = {event for mark in series.marks for event in mark.near}
    for event in [event for event in series.events if event not in told][-MAX_EVENTS:]:
        yield chart.Mark(event.run + 0.5, f"run {event.run + 1}: {event.text}")
