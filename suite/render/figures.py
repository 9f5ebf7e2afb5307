"""How a record's figures are worded, for every way of showing them."""

from __future__ import annotations

import statistics

from reference.closing_line import closing_line
from suite.cells import short
from suite.conditions import disturbed
from suite.record import CellRecord, IntervalRecord, Record

COLUMNS = (
    "cell",
    "k",
    "sec/epoch",
    "samples/s",
    "efficiency",
    "speed-up",
    "accuracy",
    "time / base",
    "published",
    "verdict",
)


def row(record: Record, cell: CellRecord) -> tuple[str, ...]:
    """One line of the table, in the order of `COLUMNS`."""
    name = f"{short(cell.trainer)} {cell.workload} {cell.mode}"
    return (
        name + (" (oversubscribed)" if cell.oversubscribed else ""),
        str(cell.world_size),
        interval(cell.sec_per_epoch, ".3g"),
        interval(cell.samples_per_s, ",.0f", bounds=False),
        interval(cell.efficiency, ".2f") if cell.efficiency else cell.efficiency_note or "-",
        interval(cell.speedup, ".2f"),
        accuracy(record, cell),
        interval(cell.slowdown, ".3f"),
        published(record, cell),
        cell.outcome.value,
    )


def interval(found: IntervalRecord | None, form: str, *, bounds: bool = True) -> str:
    """'0.84 [0.81, 0.87]'; without an interval the estimate alone; '-' for nothing."""
    if found is None:
        return "-"
    text = format(found.estimate, form)
    if not bounds or found.low is None or found.high is None:
        return text
    return f"{text} [{format(found.low, form)}, {format(found.high, form)}]"


def accuracy(record: Record, cell: CellRecord) -> str:
    """The accuracy after the last epoch, marked where the recipe was cut short."""
    if cell.accuracy is None:
        return "-"
    return f"{cell.accuracy:.3f}{'*' if shortened(record, cell) else ''}"


def shortened(record: Record, cell: CellRecord) -> str:
    """What was cut from the recipe of this cell's accuracy, in words; empty when nothing was."""
    wanted = (cell.trainer, cell.workload, cell.world_size)
    found = (a.shortened for a in record.accuracies if (a.trainer, a.workload, a.world_size) == wanted)
    return next(found, "")


def published(record: Record, cell: CellRecord) -> str:
    """What the documents print for this workload at this world size."""
    figure = record.workloads[cell.workload].published.get(cell.world_size)
    if figure is None or cell.mode == "weak":
        return "-"
    return f"{figure.sec_per_epoch:g} s" + (f", {figure.accuracy:g}" if figure.accuracy is not None else "")


def closing_lines(record: Record) -> list[str]:
    """The book's closing line of every run that was trained on its workload's own dataset."""
    lines = []
    for run in record.accuracies:
        workload = record.workloads[run.workload]
        if workload.accuracy is None or workload.accuracy.dataset != workload.dataset:
            continue
        # The seconds of training alone, for a whole epoch, also where fewer samples were trained on.
        share = record.epoch_samples[run.workload] / run.train_samples
        seconds = sum(run.train_s) / len(run.train_s) * share
        devices = next(
            (
                c.devices
                for c in record.cells
                if (c.trainer, c.workload, c.world_size) == (run.trainer, run.workload, run.world_size)
            ),
            (),
        )
        note = f"  ({run.shortened})" if run.shortened else ""
        who = f"{short(run.trainer)} {run.workload}"
        lines.append(f"{who}: {closing_line(run.per_epoch[-1], seconds, devices)}{note}")
    return lines


def compared_with(record: Record) -> str:
    """What the cells were judged against, and the torch of each side where they differ."""
    if not record.against:
        return "the accepted baseline"
    own = record.environment.versions.get("torch")
    others = {base.versions.get("torch", own) for base in record.bases} - {own}
    versions = f" (torch {', '.join(map(str, others))} against {own})" if others else ""
    return f"{record.against}{versions}, in the same sessions"


def disturbances(record: Record) -> str:
    """How quiet the machine was while it measured, in a sentence."""
    blocks = [conditions for session in record.sessions for conditions in session.conditions]
    if not blocks:
        return "What else used the machine was not recorded."
    marked = sum(1 for conditions in blocks if disturbed(conditions))
    left_out = sum(len(session.left_out) for session in record.sessions)
    steal = statistics.fmean(conditions.steal or 0.0 for conditions in blocks)
    foreign = statistics.fmean(conditions.foreign or 0.0 for conditions in blocks)
    return (
        f"{marked} of {len(blocks)} blocks were disturbed and {left_out} left out for it; on average other processes "
        f"used {foreign:.0%} of a core and the hypervisor kept {steal:.0%}."
    )
