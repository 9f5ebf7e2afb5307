"""Accuracy by epoch and world size, and the documents' published figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reference.closing_line import sec_per_epoch
from suite.plan.cells import short
from suite.plan.workloads import Published, published
from suite.records.record import Accuracy, CellRecord, Record
from suite.render import figures
from suite.render.html.bounds import bounded
from suite.render.html.chart import MAX_SERIES, Axis, Chart, Point, Series, figure

MAX_CHARTS = 12
MAX_NETS = 24  # in view


def accuracy(record: Record) -> Mapping[str, object] | None:
    """Return the learning curves and every trained net; None where nothing was trained."""
    groups: dict[tuple[str, str, str], list[Accuracy]] = {}
    for run in record.accuracies:
        groups.setdefault((run.trainer, run.workload, run.dataset), []).append(run)
    if not groups:
        return None
    return {
        "charts": [figure(_chart(*key, runs)) for key, runs in list(groups.items())[:MAX_CHARTS]],
        "left_out": max(0, len(groups) - MAX_CHARTS),
        "nets": bounded(map(_net, record.accuracies), len(record.accuracies), shown=MAX_NETS),
        "closing": figures.closing_lines(record)[:MAX_NETS],
    }


def _chart(trainer: str, workload: str, dataset: str, runs: Sequence[Accuracy]) -> Chart:
    settings = sorted({(run.world_size, run.mode) for run in runs})[:MAX_SERIES]
    epochs = max(len(run.per_epoch) for run in runs)
    each = tuple((float(epoch), str(epoch)) for epoch in range(1, epochs + 1))
    return Chart(
        title=f"{short(trainer)}, {workload}, on {dataset}",
        x=Axis("epoch", form=".0f", ticks=each),
        y=Axis("test accuracy", form=".3f", include=(1.0,)),
        series=tuple(
            _curve(k, mode, [run for run in runs if (run.world_size, run.mode) == (k, mode)]) for k, mode in settings
        ),
        interval="lowest and highest seed",
    )


def _curve(world_size: int, mode: str, runs: Sequence[Accuracy]) -> Series:
    """Return the mean over seeds after each epoch that any of them has."""
    points = []
    for epoch in range(max(len(run.per_epoch) for run in runs)):
        values = [run.per_epoch[epoch] for run in runs if epoch < len(run.per_epoch)]
        low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
        points.append(Point(epoch + 1, sum(values) / len(values), low, high))
    return Series(f"k = {figures.number(world_size, 'd')}{', weak' if mode == 'weak' else ''}", tuple(points))


def _net(run: Accuracy) -> tuple[str, ...]:
    return (
        short(run.trainer),
        run.workload,
        figures.number(run.world_size, "d"),
        figures.setting(run),
        str(run.seed),
        run.dataset,
        figures.number(run.train_samples, ",d"),
        figures.number(run.test_samples, ",d"),
        figures.number(sec_per_epoch(run.train_s), ".3g") if run.train_s else "-",
        run.shortened or "whole",
        ", ".join(figures.epochs(run)),
    )


def book(record: Record) -> Mapping[str, object] | None:
    """Return a row for each published figure and each trainer of ours; None where no figure is published."""
    datasets: dict[tuple[str, str], set[str]] = {}
    for run in record.accuracies:
        datasets.setdefault((run.trainer, run.workload), set()).add(run.dataset)
    rows = []
    for cell in record.cells:
        workload = record.workloads.get(cell.workload)
        printed = workload and published(workload, cell.mode, cell.world_size)
        if workload and printed and (cell.mode, cell.world_size) != ("weak", 1):  # the same as the strong one
            theirs = _theirs(cell, workload.published.get(1), printed)
            rows.append((*theirs, *_ours(cell, datasets.get((cell.trainer, cell.workload), set()))))
    return {"rows": bounded(rows, len(rows))} if rows else None


def _theirs(cell: CellRecord, one: Published | None, printed: Published) -> tuple[str, ...]:
    gained = "-"
    if one is not None and cell.world_size > 1 and printed.sec_per_epoch:
        gained = figures.number(one.sec_per_epoch / printed.sec_per_epoch, ".2f")
    reached = "-" if printed.accuracy is None else f"{printed.accuracy:g}"
    name = cell.workload + (" weak" if cell.mode == "weak" else "")
    return name, str(cell.world_size), printed.source, f"{printed.sec_per_epoch:g}", gained, reached


def _ours(cell: CellRecord, datasets: set[str]) -> tuple[str, ...]:
    gained = figures.interval(cell.efficiency if cell.world_size > 1 else None, ".2f", factor=cell.world_size)
    reached = figures.accuracy(cell, shortened=False)
    where = f" on {', '.join(sorted(datasets))}" if cell.accuracy is not None and datasets else ""
    return short(cell.trainer), figures.interval(cell.sec_per_epoch, ".3g"), gained, reached + where
