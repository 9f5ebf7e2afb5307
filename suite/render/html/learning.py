"""Accuracy by epoch and world size, and the documents' published figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from suite.baselines import Baseline
from suite.cells import short
from suite.record import Accuracy, CellRecord, Record
from suite.render import figures
from suite.render.html.bounds import Rows, bounded
from suite.render.html.chart import MAX_SERIES, Axis, Chart, Point, Series, figure
from suite.workloads import Workload

MAX_CHARTS = 12
MAX_TICKS = 10  # epochs that are each named


@dataclass(frozen=True)
class View:
    """What the template shows."""

    charts: tuple[Markup, ...]
    left_out: int
    runs: Rows[tuple[str, ...]]
    closing: tuple[str, ...]


@dataclass(frozen=True)
class Book:
    """The documents' figures: one row for each of theirs and each trainer of ours."""

    rows: Rows[tuple[str, ...]]


def view(record: Record, baseline: Baseline | None) -> View | None:
    """None where nothing was trained."""
    if not record.accuracies:
        return None
    groups: dict[tuple[str, str, str], list[Accuracy]] = {}
    for run in record.accuracies:
        groups.setdefault((run.trainer, run.workload, run.dataset), []).append(run)
    charts = tuple(figure(_chart(*key, runs)) for key, runs in list(groups.items())[:MAX_CHARTS])
    rows = bounded(map(_row, record.accuracies), len(record.accuracies), shown=24)
    return View(charts, max(0, len(groups) - MAX_CHARTS), rows, tuple(figures.closing_lines(record)[:24]))


def _chart(trainer: str, workload: str, dataset: str, runs: Sequence[Accuracy]) -> Chart:
    sizes = sorted({run.world_size for run in runs})[:MAX_SERIES]
    epochs = max(len(run.per_epoch) for run in runs)
    each = tuple((float(epoch), str(epoch)) for epoch in range(1, epochs + 1))
    return Chart(
        title=f"{short(trainer)}, {workload}, on {dataset}",
        x=Axis("epoch", form=".0f", ticks=each if epochs <= MAX_TICKS else ()),
        y=Axis("test accuracy", form=".3f", include=(1.0,)),
        series=tuple(_curve(k, [run for run in runs if run.world_size == k]) for k in sizes),
        interval="lowest and highest seed",
    )


def _curve(world_size: int, runs: Sequence[Accuracy]) -> Series:
    """The mean over seeds after each epoch that any of them has."""
    points = []
    for epoch in range(max(len(run.per_epoch) for run in runs)):
        values = [run.per_epoch[epoch] for run in runs if epoch < len(run.per_epoch)]
        low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
        points.append(Point(epoch + 1, sum(values) / len(values), low, high))
    return Series(f"k = {figures.number(world_size, 'd')}", tuple(points))


def _row(run: Accuracy) -> tuple[str, ...]:
    curve = " ".join(figures.number(value, ".3f") for value in run.per_epoch[:1000])
    seconds = figures.number(sum(run.train_s) / len(run.train_s), ".3g") if run.train_s else "-"
    numbers = [figures.number(value, ",d") for value in (run.train_samples, run.test_samples)]
    about = (short(run.trainer), run.workload, figures.number(run.world_size, "d"), str(run.seed))
    return (*about, run.dataset, *numbers, seconds, run.shortened or "whole", curve)


def book(record: Record, baseline: Baseline | None) -> Book | None:
    """The published figures of the run's workloads beside what was measured; None where there are none."""
    theirs = {
        (name, world_size): _theirs(name, world_size, workload)
        for name, workload in record.workloads.items()
        for world_size in sorted(workload.published)
    }
    datasets: dict[tuple[str, str], set[str]] = {}
    for run in record.accuracies:
        datasets.setdefault((run.trainer, run.workload), set()).add(run.dataset)
    ours = [cell for cell in record.cells if (cell.workload, cell.world_size) in theirs and cell.mode != "weak"]
    rows = (
        (*theirs[cell.workload, cell.world_size], *_ours(cell, datasets.get((cell.trainer, cell.workload), set())))
        for cell in ours
    )
    return Book(bounded(rows, len(ours))) if ours else None


def _theirs(name: str, world_size: int, workload: Workload) -> tuple[str, ...]:
    one, printed = workload.published.get(1), workload.published[world_size]
    gained = "-"
    if one is not None and world_size > 1 and printed.sec_per_epoch:
        gained = figures.number(one.sec_per_epoch / printed.sec_per_epoch, ".2f")
    reached = "-" if printed.accuracy is None else f"{printed.accuracy:g}"
    return name, str(world_size), printed.source, f"{printed.sec_per_epoch:g}", gained, reached


def _ours(cell: CellRecord, datasets: set[str]) -> tuple[str, ...]:
    gained = "-"
    if cell.efficiency is not None and cell.world_size > 1:
        gained = figures.interval(cell.efficiency, ".2f", factor=figures.as_float(cell.world_size))
    reached = figures.accuracy(cell, shortened=False)
    where = f" on {', '.join(sorted(datasets))}" if cell.accuracy is not None and datasets else ""
    return short(cell.trainer), figures.interval(cell.sec_per_epoch, ".3g"), gained, reached + where
