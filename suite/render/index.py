"""A machine's history as one page: a chart for each cell, what changed on the machine, links to every run's report."""

from __future__ import annotations

import math
import os
from urllib.parse import quote

from suite.records.history import MAX_CELLS, MAX_RUNS, Event, History, PastRun, Point, Series
from suite.render import figures
from suite.render.figures import plural
from suite.render.html import chart
from suite.render.html.environment import bounded, page

TICKS = 5
MAX_EVENTS = 6  # drawn in a chart, the newest
DATE = len("2026-01-01")


def render(history: History) -> str:
    """Return the page, for the folder of the machine, above `runs/`."""
    return page(
        "index.html.j2",
        machine_key=history.machine_key,
        facts=[fact for run in history.runs[-1:] for fact in figures.facts(run.machine, run.environment)],
        runs=[_row(number, run) for number, run in reversed(list(enumerate(history.runs, 1)))],
        history=history,
        most=(MAX_RUNS, MAX_CELLS),
        changes=bounded((_change(history, event) for event in reversed(history.events)), len(history.events)),
        charts=[chart.figure(_chart(history, series)) for series in history.cells],
        skipped=bounded(history.skipped, len(history.skipped)),
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


def _change(history: History, event: Event) -> tuple[str, str, str]:
    """Return a line of the table of changes: the run, when it began, and what changed with it."""
    return str(event.run + 1), history.runs[event.run].started_utc[:DATE], event.text


def _chart(history: History, series: Series) -> chart.Chart:
    points = [_point(history, point) for point in series.points]
    drawn = [chart.Series("time", tuple(points))]
    accepted = tuple(point for point, of_run in zip(points, series.points, strict=True) if of_run.accepted)
    if accepted:
        drawn.append(chart.Series("accepted", accepted, kind="base", joined=False))
    newest, runs = figures.interval(series.points[-1].sec_per_epoch, ".3g"), len(history.runs)
    ticks = tuple((float(number), str(number)) for number in range(1, runs + 1, math.ceil(runs / TICKS)))
    events = [chart.Mark(event.run + 0.5, f"run {event.run + 1}: {event.text}") for event in history.events]
    return chart.Chart(
        title=series.name,
        x=chart.Axis("run", ticks=ticks, include=(1.0, float(runs)), form=".0f"),  # the same in every chart of the page
        y=chart.Axis("seconds an epoch", log=True),
        series=tuple(drawn),
        marks=tuple(events[-MAX_EVENTS:]),
        description=f"{plural(len(points), 'run')}, the newest {newest} seconds an epoch",
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
