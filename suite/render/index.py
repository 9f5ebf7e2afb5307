"""A machine's history as one page: what changed, a chart for each cell, and links to every run's own report."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Iterable
from urllib.parse import quote

from suite.records.changes import ALPHA, MIN_RUNS
from suite.records.history import MAX_CELLS, MAX_RUNS, Event, History, Mark, PastRun, Point, Series
from suite.records.neighbours import MOST
from suite.render import figures
from suite.render.figures import plural
from suite.render.html import chart
from suite.render.html.environment import bounded, page
from suite.verdict.outcome import percent

TICKS = 5
MAX_EVENTS = 6  # versions and hosts named in one chart, the newest
DATE = len("2026-01-01")


def render(history: History) -> str:
    """Return the page, for the folder of the machine, above `runs/`."""
    marks = [(series.name, mark) for series in history.cells for mark in series.marks]
    marks.sort(key=lambda named: named[1].run, reverse=True)
    return page(
        "index.html.j2",
        machine_key=history.machine_key,
        facts=[fact for run in history.runs[-1:] for fact in figures.facts(run.machine, run.environment)],
        runs=[_row(number, run) for number, run in reversed(list(enumerate(history.runs, 1)))],
        history=history,
        most=(MAX_RUNS, MAX_CELLS),
        changes=bounded(((name, *_change(history, mark)) for name, mark in marks), len(marks)),
        charts=[chart.figure(_chart(history, series)) for series in history.cells],
        skipped=bounded(history.skipped, len(history.skipped)),
        alpha=ALPHA,
        autocorrelation=MOST,
        min_runs=MIN_RUNS,
    )


def _row(number: int, run: PastRun) -> dict[str, object]:
    """Return a line of the table of runs."""
    notes = (("accepted", run.accepted), ("cut short", run.interrupted))
    return {
        "number": number,
        "started": figures.when(run.started_utc),
        "commit": figures.commit(run.environment),
        "verdicts": figures.headline(run.outcomes),
        "host": run.machine.host,
        "note": ", ".join(text for text, holds in notes if holds),
        "folder": quote(os.fsencode(run.folder)),
        "pages": run.pages,
    }


def _change(history: History, mark: Mark) -> tuple[str, str, str, str]:
    """Return a mark in words: what, where, between which commits, and what else changed there."""
    before, after = history.runs[mark.before], history.runs[mark.run]
    where = f"run {mark.run + 1}, {after.started_utc[:DATE]}"
    commits = f"{figures.commit(before.environment)} → {figures.commit(after.environment)}"
    return percent(mark.log_shift), where, commits, _near(mark) or "-"


def _near(mark: Mark) -> str:
    return "; ".join(
        event.text if event.run == mark.run else f"{event.text} (run {event.run + 1})" for event in mark.near
    )


def _chart(history: History, series: Series) -> chart.Chart:
    points = [_point(history, point) for point in series.points]
    drawn = [chart.Series("time", tuple(points))]
    accepted = tuple(point for point, of_run in zip(points, series.points, strict=True) if of_run.accepted)
    if accepted:
        drawn.append(chart.Series("accepted", accepted, kind="base", joined=False))
    if series.marks:
        drawn.append(chart.Series("level between marks", tuple(_levels(series)), kind="ideal"))
    newest, runs = figures.interval(series.points[-1].sec_per_epoch, ".3g"), len(history.runs)
    ticks = tuple((float(number), str(number)) for number in range(1, runs + 1, math.ceil(runs / TICKS)))
    marks = plural(len(series.marks), "change mark")
    return chart.Chart(
        title=series.name,
        x=chart.Axis("run", ticks=ticks, include=(1.0, float(runs)), form=".0f"),  # the same in every chart of the page
        y=chart.Axis("seconds an epoch", log=True),
        series=tuple(drawn),
        marks=tuple(_marks(series)),
        description=f"{plural(len(points), 'run')}, the newest {newest} seconds an epoch; {marks}",
    )


def _point(history: History, point: Point) -> chart.Point:
    run, time = history.runs[point.run], point.sec_per_epoch
    notes = [point.outcome, run.started_utc[:DATE], f"commit {figures.commit(run.environment)}"]
    if point.efficiency is not None:
        notes.append(f"efficiency {figures.interval(point.efficiency, '.2f')}")
    if point.accuracy is not None:
        notes.append(f"accuracy {figures.number(point.accuracy, '.3f')}")
    notes += [text for text, holds in (("accepted", point.accepted), ("pinned", point.pinned)) if holds]
    return chart.Point.of(point.run + 1, time, ", ".join(notes))


def _levels(series: Series) -> Iterable[chart.Point]:
    """Yield the median of each stretch between marks, as steps."""
    edges = [series.points[0].run, *(mark.run for mark in series.marks), series.points[-1].run + 1]
    for start, end in itertools.pairwise(edges):
        level = statistics.median(p.sec_per_epoch.estimate for p in series.points if start <= p.run < end)
        yield chart.Point(start + 0.5, level)
        yield chart.Point(end + 0.5, level)


def _marks(series: Series) -> Iterable[chart.Mark]:
    """Yield changes of level with what is near them, and the newest other events, each as a line before its run."""
    for mark in series.marks:
        near = f", near it {_near(mark)}" if mark.near else ""
        yield chart.Mark(mark.run + 0.5, f"{percent(mark.log_shift)} from run {mark.run + 1}{near}")
    told: set[Event] = {event for mark in series.marks for event in mark.near}
    for event in [event for event in series.events if event not in told][-MAX_EVENTS:]:
        yield chart.Mark(event.run + 0.5, f"run {event.run + 1}: {event.text}")
