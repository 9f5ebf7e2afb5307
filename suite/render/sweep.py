"""A sweep as a document: accuracy over learning rate, and a table of every setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median, stdev

from suite.plan.cells import short
from suite.records.sweep import Sweep
from suite.render.document import MAX_SERIES, Axis, Chart, Document, First, Point, Section, Series, Table, Text
from suite.render.figures import commit, plural, versions
from suite.render.scale import sparkline


def document(sweep: Sweep, epochs: Sequence[int]) -> Document:
    """Return a sweep as a page, with accuracy after each of these epochs."""
    machine, code = sweep.machine, sweep.environment
    columns = _columns(epochs)
    table = Table.of(
        "Accuracy by setting", columns, _rows(sweep, epochs), total=len(sweep.settings), numbers=columns[:3]
    )
    legend = Text(
        "Mean ± SD over seeds. A rule is named where it makes this rate of the recipe's for one device.", muted=True
    )
    name = f"Sweep: {short(sweep.trainer)}, {sweep.workload.name} on {sweep.dataset}"
    return Document(
        name,
        First("", name, pictures=(_chart(sweep),), notes=tuple(remarks(sweep))),
        (Section("nets", "Every setting", (table, legend)),),
        f"{machine.cpu_model} ({machine.key}). {versions(code.versions)}. Commit {commit(code)}.",
    )


def remarks(sweep: Sweep) -> list[str]:
    """Say what was trained, how many nets are missing, and why."""
    missing = f"Missing: {plural(len(sweep.missing), 'net')}; the same command with this folder as --out trains them."
    return [
        f"{plural(len(sweep.trained), 'net')}, each fresh from its seed; {plural(sweep.test_samples, 'test sample')}, "
        f"so one changes the accuracy by {1 / sweep.test_samples:.4f}.",
        *([missing] if sweep.missing else []),
        *(f"failed: {net}" for net in sweep.failed),
    ]


def _columns(epochs: Sequence[int]) -> tuple[str, ...]:
    after = (f"accuracy, {plural(count, 'epoch')}" for count in epochs)
    return "k", "batch", "lr", "rule", *after, "sec/epoch", "seeds", "mean curve"


def _rows(sweep: Sweep, epochs: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yield a line of the table for every setting that has nets."""
    for setting in sweep.settings:
        if nets := sweep.of(setting):
            # The median, because the first epoch of a process is a slow one.
            seconds = f"{median(second for net in nets for second in net.train_s):.3g}"
            yield (
                str(setting.world_size),
                str(setting.batch),
                f"{setting.lr:g}",
                ", ".join(sweep.rules(setting)),
                *(_mean([net.per_epoch[count - 1] for net in nets]) for count in epochs),
                seconds + (" (oversubscribed)" if any(net.oversubscribed for net in nets) else ""),
                str(len(nets)),
                sparkline([fmean(reached) for reached in zip(*(net.per_epoch for net in nets), strict=True)]),
            )


def _mean(accuracies: Sequence[float]) -> str:
    """Return mean and SD over seeds."""
    return f"{fmean(accuracies):.3f}" + (f" ± {stdev(accuracies):.3f}" if len(accuracies) > 1 else "")


def _chart(sweep: Sweep) -> Chart:
    """Return accuracy after the last epoch over the rate, a curve for each number of devices and batch."""
    curves: dict[str, list[Point]] = {}
    for setting in sweep.settings:
        if last := [net.per_epoch[-1] for net in sweep.of(setting)]:
            curve = curves.setdefault(f"k = {setting.world_size}, batch {setting.batch}", [])
            curve.append(Point(setting.lr, fmean(last), min(last), max(last)))
    return Chart(
        f"Accuracy after {plural(sweep.epochs, 'epoch')}",
        Axis("learning rate", log=True, ticks=tuple((lr, f"{lr:g}") for lr in sweep.lrs)),
        Axis("test accuracy", form=".3f", include=(1.0,)),
        tuple(Series(name, tuple(points)) for name, points in list(curves.items())[:MAX_SERIES]),
        interval="lowest and highest seed",
    )
