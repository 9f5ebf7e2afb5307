"""Accuracy by epoch and world size, and the documents' published figures next to ours."""

from __future__ import annotations

from collections.abc import Sequence

from suite.plan.workloads import Published, published
from suite.records.record import Accuracy, CellRecord, Record
from suite.render import figures
from suite.render.document import (
    MAX_SERIES,
    Axis,
    Block,
    Chart,
    Charts,
    Fold,
    Point,
    Section,
    Series,
    Table,
    Text,
    Verbatim,
)

MAX_CHARTS = 12
MAX_NETS = 24  # closing lines
BOOK = (
    "workload", "k", "document", "their s/epoch", "their gain", "their accuracy", "trainer", "our s/epoch", "our gain",
    "our accuracy",
)  # fmt: skip


def learning(record: Record) -> Section:
    """Return the learning curves, every trained net, and the published figures."""
    groups: dict[tuple[str, str, str], list[Accuracy]] = {}
    for run in record.accuracies:
        groups.setdefault((run.trainer, run.workload, run.dataset), []).append(run)
    names = figures.names(record)
    blocks: list[Block] = []
    if groups:
        charts = tuple(
            _chart(record, f"{names[trainer]}, {workload}, on {dataset}", runs)
            for (trainer, workload, dataset), runs in list(groups.items())[:MAX_CHARTS]
        )
        blocks += [Charts(charts), Text(_EXPLAINED, muted=True)]
        if more := len(groups) - len(charts):
            blocks.append(Text(f"{more} more are in the table.", muted=True))
        blocks.append(_nets(record))
        if closing := figures.closing_lines(record)[:MAX_NETS]:
            blocks += [Text("As the book ends its runs:", muted=True), Verbatim("\n".join(closing))]
    if rows := _book(record):
        blocks.append(Fold("Published figures and ours", (_published_table(rows), Text(_GAINS, muted=True))))
    return Section("learning", "Accuracy", tuple(blocks))


_EXPLAINED = (
    "Each net is trained from scratch, with the same initial weights at every world size; every test sample is counted "
    "once. At weak scaling the batch grows with the devices, and the rate by the workload's rule."
)
_GAINS = (
    "The documents measured on their own GPUs, so their seconds say little. The gain from more devices says more: how "
    "many times the work of k = 1 is done in a second."
)


def _nets(record: Record) -> Fold:
    table = Table.of(
        "Trained nets",
        figures.NET_COLUMNS,
        figures.nets(record),
        numbers=("k", "seed", "train", "test", "s / epoch"),
        total=len(record.accuracies),
    )
    return Fold("Every trained net, epoch by epoch", (table,))


def _chart(record: Record, title: str, runs: Sequence[Accuracy]) -> Chart:
    settings = sorted({(run.world_size, run.mode) for run in runs})[:MAX_SERIES]
    epochs = max(len(run.per_epoch) for run in runs)
    each = tuple((float(epoch), str(epoch)) for epoch in range(1, epochs + 1))
    texts = any(run.test_loss for run in runs)
    return Chart(
        title=title,
        x=Axis("epoch", form=".0f", ticks=each),
        y=Axis("test loss, nats", form=".3f") if texts else Axis("test accuracy", form=".3f", include=(1.0,)),
        series=tuple(
            _curve(record, [run for run in runs if (run.world_size, run.mode) == setting]) for setting in settings
        ),
        interval="lowest and highest seed",
    )


def _curve(record: Record, runs: Sequence[Accuracy]) -> Series:
    """Return the mean over seeds after each epoch that any of them has: of the accuracy, or of texts the test loss."""
    points = []
    for epoch in range(max(len(run.per_epoch) for run in runs)):
        reached = [(run.test_loss or run.per_epoch)[epoch : epoch + 1] for run in runs]
        values = [value for values in reached for value in values if value is not None]
        if not values:  # the loss was not finite
            continue
        low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
        points.append(Point(epoch + 1, sum(values) / len(values), low, high))
    devices = figures.number(runs[0].world_size, "d") + figures.net_mark(record, runs[0])
    return Series(f"k = {devices}{', weak' if runs[0].mode == 'weak' else ''}", tuple(points))


def _published_table(rows: Sequence[tuple[str, ...]]) -> Table:
    return Table.of("Published and measured", BOOK, rows, numbers=[*BOOK[1:2], *BOOK[3:6], *BOOK[7:9]])


def _book(record: Record) -> list[tuple[str, ...]]:
    """Return a row for each published figure and each trainer of ours."""
    datasets: dict[tuple[str, str], set[str]] = {}
    for run in record.accuracies:
        datasets.setdefault((run.trainer, run.workload), set()).add(run.dataset)
    rows, names = [], figures.names(record)
    for cell in record.cells:
        workload = record.workloads.get(cell.workload)
        printed = workload and published(workload, cell.mode, cell.world_size)
        if workload and printed and (cell.mode, cell.world_size) != ("weak", 1):  # the same as the strong one
            where = ", ".join(sorted(datasets.get((cell.trainer, cell.workload), ())))
            rows.append(_published(cell, names[cell.trainer], printed, workload.published.get(1), where))
    return rows


def _published(
    cell: CellRecord, trainer: str, printed: Published, one: Published | None, where: str
) -> tuple[str, ...]:
    """Return the figures of the documents, whose gain is over `one` device, and ours, trained on `where`."""
    several = cell.world_size > 1
    gained = one.sec_per_epoch / printed.sec_per_epoch if several and one and printed.sec_per_epoch else None
    return (
        cell.workload + (" weak" if cell.mode == "weak" else ""),
        str(cell.world_size),
        printed.source,
        f"{printed.sec_per_epoch:g}",
        "-" if gained is None else figures.number(gained, ".2f"),
        "-" if printed.accuracy is None else f"{printed.accuracy:g}",
        trainer,
        figures.interval(cell.sec_per_epoch, ".3g"),
        figures.interval(cell.efficiency if several else None, ".2f", factor=cell.world_size),
        figures.accuracy(cell) + (f" on {where}" if where and cell.accuracy is not None else ""),
    )
