"""Accuracy by epoch and world size, and the documents' published figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from reference.closing_line import sec_per_epoch
from suite.plan.cells import short
from suite.plan.workloads import Published, published
from suite.records.baselines import Baseline
from suite.records.record import Accuracy, CellRecord, Record
from suite.render import figures
from suite.render.html.bounds import Rows, bounded
from suite.render.html.chart import MAX_SERIES, Axis, Chart, Point, Series, figure

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
    settings = sorted({(run.world_size, run.mode) for run in runs})[:MAX_SERIES]
    epochs = max(len(run.per_epoch) for run in runs)
    each = tuple((float(epoch), str(epoch)) for epoch in range(1, epochs + 1))
    return Chart(
        title=f"{short(trainer)}, {workload}, on {dataset}",
        x=Axis("epoch", form=".0f", ticks=each if epochs <= MAX_TICKS else ()),
        y=Axis("test accuracy", form=".3f", include=(1.0,)),
        series=tuple(
            _curve(k, mode, [run for run in runs if (run.world_size, run.mode) == (k, mode)]) for k, mode in settings
        ),
        interval="lowest and highest seed",
    )


def _curve(world_size: int, mode: str, runs: Sequence[Accuracy]) -> Series:
    """The mean over seeds after each epoch that any of them has."""
    points = []
    for epoch in range(max(len(run.per_epoch) for run in runs)):
        values = [run.per_epoch[epoch] for run in runs if epoch < len(run.per_epoch)]
        low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
        points.append(Point(epoch + 1, sum(values) / len(values), low, high))
    return Series(f"k = {figures.number(world_size, 'd')}{', weak' if mode == 'weak' else ''}", tuple(points))


def _row(run: Accuracy) -> tuple[str, ...]:
    seconds = figures.number(sec_per_epoch(run.train_s), ".3g") if run.train_s else "-"
    numbers = [figures.number(value, ",d") for value in (run.train_samples, run.test_samples)]
    size, curve = figures.number(run.world_size, "d"), ", ".join(figures.epochs(run))
    about = (short(run.trainer), run.workload, size, figures.setting(run), str(run.seed))
    return (*about, run.dataset, *numbers, seconds, run.shortened or "whole", curve)


def book(record: Record, baseline: Baseline | None) -> Book | None:
    """The published figures of the run's workloads beside what was measured; None where there are none."""
    datasets: dict[tuple[str, str], set[str]] = {}
    for run in record.accuracies:
        datasets.setdefault((run.trainer, run.workload), set()).add(run.dataset)
    rows = []
    for cell in record.cells:
        workload = record.workloads.get(cell.workload)
        printed = workload and published(workload, cell.mode, cell.world_size)
        if workload and printed and (cell.mode, cell.world_size) != ("weak", 1):  # which is the strong one
            theirs = _theirs(cell, workload.published.get(1), printed)
            rows.append((*theirs, *_ours(cell, datasets.get((cell.trainer, cell.workload), set()))))
    return Book(bounded(rows, len(rows))) if rows else None


def _theirs(cell: CellRecord, one: Published | None, printed: Published) -> tuple[str, ...]:
    gained = "-"
    if one is not None and cell.world_size > 1 and printed.sec_per_epoch:
        gained = figures.number(one.sec_per_epoch / printed.sec_per_epoch, ".2f")
    reached = "-" if printed.accuracy is None else f"{printed.accuracy:g}"
    name = cell.workload + (" weak" if cell.mode == "weak" else "")
    return name, str(cell.world_size), printed.source, f"{printed.sec_per_epoch:g}", gained, reached


def _ours(cell: CellRecord, datasets: set[str]) -> tuple[str, ...]:
    gained = "-"
    if cell.efficiency is not None and cell.world_size > 1:
        gained = figures.interval(cell.efficiency, ".2f", factor=figures.as_float(cell.world_size))
    reached = figures.accuracy(cell, shortened=False)
    where = f" on {', '.join(sorted(datasets))}" if cell.accuracy is not None and datasets else ""
    return short(cell.trainer), figures.interval(cell.sec_per_epoch, ".3g"), gained, reached + where
