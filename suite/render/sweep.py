"""The results of a sweep as figures and sentences, in the terminal and as Markdown.

A row's accuracy is that of the last epoch, its mean over seeds. The cost of a rule is the mean difference to one device
at the rule's own start, paired by seed, with a 95 % t-interval over the pairs: fresh nets from one seed begin with the
same weights, independent of trainer and devices.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from suite.plan.cells import short
from suite.records.sweep import LINEAR_WARMUP, ONE_DEVICE, Row, Start, Sweep, Trained, scaled
from suite.render.figures import commit, interval, plural, versions
from suite.render.markdown import fitted, table, text
from suite.render.screen import Screen
from suite.render.sparkline import sparkline
from suite.verdict.metrics import Interval, from_values

COLUMNS = ("start", "k", "rule", "batch", "lr", "accuracy", "- 1 device", "sec/epoch", "seeds", "mean curve")
EXPLAINED = (
    "A start is batch and learning rate on one device; a rule makes those on k devices of it. Accuracy is that of the "
    "last epoch, mean ± SD over seeds; '- 1 device' is its mean difference to one device at the same start, paired by "
    "seed, with a 95 % t-interval."
)


class Result(NamedTuple):
    """A row of the grid and its nets.

    Attributes:
        nets: by seed; at least one.
        change: accuracy minus that of one device at the same start, over the seeds that both have; None without any.
    """

    row: Row
    nets: dict[int, Trained]
    change: Interval | None

    @property
    def last(self) -> list[float]:
        """Accuracy after the last epoch, by seed."""
        return [net.per_epoch[-1] for net in self.nets.values()]

    @property
    def mean(self) -> float:
        """The mean of `last`."""
        return statistics.fmean(self.last)

    def texts(self) -> tuple[str, ...]:
        """Return one line of the table, in the order of `COLUMNS`."""
        setting, nets = self.row.setting, self.nets.values()
        spread = f" ± {statistics.stdev(self.last):.3f}" if len(nets) > 1 else ""
        # The median, because the first epoch of a process is a slow one.
        sec_per_epoch = statistics.median(seconds for net in nets for seconds in net.train_s)
        crowded = " (oversubscribed)" if any(net.oversubscribed for net in nets) else ""
        curve = [statistics.fmean(epoch) for epoch in zip(*(net.per_epoch for net in nets), strict=True)]
        return (
            named(self.row.start),
            str(setting.world_size),
            self.row.rule,
            str(setting.batch),
            f"{setting.lr:g}",
            f"{self.mean:.3f}{spread}",
            interval(self.change, "+.3f"),
            f"{sec_per_epoch:.3g}{crowded}",
            str(len(nets)),
            sparkline(curve),
        )


def results(sweep: Sweep) -> list[Result]:
    """Return the rows that have nets, in the grid's order."""
    every = []
    for row in sweep.grid.rows():
        nets = sweep.of(row.setting)
        alone = sweep.of(scaled(row.rule, 1, row.start)) if row.rule != ONE_DEVICE else {}
        gains = [net.per_epoch[-1] - alone[seed].per_epoch[-1] for seed, net in nets.items() if seed in alone]
        if nets:
            every.append(Result(row, nets, from_values(gains) if gains else None))
    return every


def terminal(sweep: Sweep, width: int) -> str:
    """Return the table and its sentences for a terminal of `width` columns; the sweep may be unfinished."""
    rows, screen = results(sweep), Screen(width)
    screen.table(COLUMNS, [row.texts() for row in rows], left=("start", "rule", "mean curve"), whole=COLUMNS)
    for line in [_about(sweep), *sentences(sweep, rows)]:
        screen.line(line)
    return screen.text()


def markdown(sweep: Sweep) -> str:
    """Return the same for a pull request; text from the file is escaped."""
    rows, machine, code = results(sweep), sweep.machine, sweep.environment
    where = f"{machine.cpu_model} ({machine.key}). {versions(code.versions)}. Commit {commit(code)}."
    first = [
        f"# {text(f'Sweep: {short(sweep.trainer)}, {sweep.workload.name} on {sweep.dataset}')}",
        "",
        text(_about(sweep)),
        "",
        *(f"- {text(line)}" for line in sentences(sweep, rows)),
        "",
    ]
    return fitted(first, [table(COLUMNS, (row.texts() for row in rows)), [EXPLAINED, "", text(where)]])


def named(start: Start) -> str:
    """Return '32, 0.1'."""
    return f"{start.batch}, {start.lr:g}"


def sentences(sweep: Sweep, rows: list[Result]) -> list[str]:
    """Say how far the rate can be raised, what each rule makes of the best start, and which nets are missing."""
    count = sweep.missing()
    missing = [f"{plural(count, 'net')} {'is' if count == 1 else 'are'} missing."] if count else []
    return [*_limits(rows), *_rules(sweep, rows), *missing, *(f"failed: {net}" for net in sweep.failed)]


def best_start(rows: list[Result], batch: int) -> Start | None:
    """Return the start of this batch at which one device is most accurate; None where one device trained nothing."""
    alone = [each for each in rows if each.row.rule == ONE_DEVICE and each.row.start.batch == batch]
    return max(alone, key=lambda each: each.mean).row.start if alone else None


def _about(sweep: Sweep) -> str:
    climb = f", warm-up over {sweep.warmup_epochs}" if LINEAR_WARMUP in sweep.grid.rules else ""
    return (
        f"{plural(len(sweep.trained), 'net')}, each fresh from its seed; {plural(sweep.epochs, 'epoch')} of "
        f"{plural(sweep.train_samples, 'sample')}{climb}; {plural(sweep.test_samples, 'test sample')}, so one sample "
        f"changes the accuracy by {1 / sweep.test_samples:.4f}."
    )


def _limits(rows: list[Result]) -> list[str]:
    """Name, by devices and batch, the most accurate rate and the accuracy of the largest, for all rules together."""
    groups: dict[tuple[int, int], list[Result]] = {}
    for each in rows:
        if not each.row.setting.warmup:
            groups.setdefault((each.row.setting.world_size, each.row.setting.batch), []).append(each)
    said = []
    for (size, batch), group in sorted(groups.items()):
        best = max(group, key=lambda each: each.mean)
        largest = max(group, key=lambda each: each.row.setting.lr)
        best_lr, largest_lr = best.row.setting.lr, largest.row.setting.lr
        where = f"{size} device(s), batch {batch}: best at lr {best_lr:g} ({best.mean:.3f})"
        if best_lr < largest_lr:
            said.append(f"{where}; the largest, {largest_lr:g}, reaches {largest.mean:.3f}.")
        elif any(each.row.setting.lr < largest_lr for each in group):
            said.append(f"{where}, the largest that was tried; a larger one may be better still (--lrs).")
    return said


def _rules(sweep: Sweep, rows: list[Result]) -> list[str]:
    """Compare the rules, by batch and devices, at the start that one device does best with."""
    said = []
    for batch in sweep.grid.batches:
        start = best_start(rows, batch)
        for size in sweep.grid.world_sizes:
            here = [each for each in rows if each.row.start == start and each.row.setting.world_size == size]
            parts = [f"{_rule(each.row)} {interval(each.change, '+.3f')}" for each in here if each.change is not None]
            if start is not None and parts:
                counts = sorted({len(each.nets) for each in here})
                seeds = "-".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
                said.append(
                    f"From ({named(start)}), the best of one device, to {plural(size, 'device')} the accuracy changes "
                    f"by: {', '.join(parts)} ({seeds} seed(s))."
                )
    return said


def _rule(row: Row) -> str:
    climb = " after warm-up" if row.rule == LINEAR_WARMUP else ""
    return f"{row.rule.removesuffix('-warmup')} (lr {row.setting.lr:g}{climb})"
