"""What a sweep found, in figures and in words, for every way of showing it.

A row's accuracy is that of the last epoch, its mean over seeds. What a rule costs is the mean difference to one device
at the rule's own start, paired by seed, with a 95 % t-interval over the pairs: fresh nets from one seed begin with the
same weights, whatever trains them.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from suite.records.sweep import LINEAR_WARMUP, ONE_DEVICE, Row, Setting, Start, Sweep, Trained, scaled
from suite.render.sparkline import sparkline
from suite.verdict.metrics import Interval, from_values

COLUMNS = ("start", "k", "rule", "batch", "lr", "accuracy", "- 1 device", "sec/epoch", "seeds", "mean curve")


class Found(NamedTuple):
    """A row of the grid and what its nets came to.

    Attributes:
        nets: by seed; at least one.
        change: accuracy against one device at the same start, where both have a net of one seed.
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
        """Of `last`."""
        return statistics.fmean(self.last)

    @property
    def curve(self) -> tuple[float, ...]:
        """Mean accuracy after every epoch."""
        return tuple(map(statistics.fmean, zip(*(net.per_epoch for net in self.nets.values()), strict=True)))

    @property
    def sec_per_epoch(self) -> float:
        """The median over epochs and nets: the first epoch of a process is a slow one."""
        return statistics.median(seconds for net in self.nets.values() for seconds in net.train_s)


def found(sweep: Sweep) -> list[Found]:
    """The rows that have nets, in the grid's order."""
    every = []
    for row in sweep.grid.rows():
        nets = sweep.of(row.setting)
        alone = sweep.of(scaled(row.rule, 1, row.start)) if row.rule != ONE_DEVICE else {}
        gains = [net.per_epoch[-1] - alone[seed].per_epoch[-1] for seed, net in nets.items() if seed in alone]
        if nets:
            every.append(Found(row, nets, from_values(gains) if gains else None))
    return every


def texts(one: Found) -> tuple[str, ...]:
    """One line of the table, in the order of `COLUMNS`."""
    setting = one.row.setting
    spread = f" ± {statistics.stdev(one.last):.3f}" if len(one.nets) > 1 else ""
    crowded = any(net.oversubscribed for net in one.nets.values())
    return (
        named(one.row.start),
        str(setting.world_size),
        one.row.rule,
        str(setting.batch),
        f"{setting.lr:g}",
        f"{one.mean:.3f}{spread}",
        signed(one.change),
        f"{one.sec_per_epoch:.3g}{' (oversubscribed)' if crowded else ''}",
        str(len(one.nets)),
        sparkline(one.curve),
    )


def named(start: Start) -> str:
    """'32, 0.1'."""
    return f"{start.batch}, {start.lr:g}"


def signed(change: Interval | None) -> str:
    """'-0.004 [-0.010, +0.002]'; '-' where there is nothing to compare."""
    if change is None:
        return "-"
    if change.low is None or change.high is None:
        return f"{change.estimate:+.3f}"
    return f"{change.estimate:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"


def sentences(sweep: Sweep) -> list[str]:
    """What the figures say: how far the rate can be raised, and what each rule makes of the best start."""
    rows = found(sweep)
    return [*_limits(rows), *_rules(rows, sweep)]


def best_start(rows: list[Found], batch: int) -> Start | None:
    """The start of this batch that one device does best with; None where one device trained nothing."""
    alone = [one for one in rows if one.row.rule == ONE_DEVICE and one.row.start.batch == batch]
    return max(alone, key=lambda one: one.mean).row.start if alone else None


def _limits(rows: list[Found]) -> list[str]:
    """By devices and batch, the rate that did best and what the largest came to, whatever rule led there."""
    plain: dict[tuple[int, int], dict[Setting, Found]] = {}
    for one in rows:
        size, batch, _, warmup = one.row.setting
        if not warmup:
            plain.setdefault((size, batch), {})[one.row.setting] = one
    said = []
    for (size, batch), settings in sorted(plain.items()):
        by_rate = sorted(settings.values(), key=lambda one: one.row.setting.lr)
        if len(by_rate) < 2:
            continue
        best, largest = max(by_rate, key=lambda one: one.mean), by_rate[-1]
        where = f"{size} device(s), batch {batch}: best at lr {best.row.setting.lr:g} ({best.mean:.3f})"
        if best is largest:
            said.append(f"{where}, the largest that was tried; a larger one may be better still (--lrs).")
        else:
            said.append(f"{where}; the largest, {largest.row.setting.lr:g}, comes to {largest.mean:.3f}.")
    return said


def _rules(rows: list[Found], sweep: Sweep) -> list[str]:
    said = []
    for batch in sweep.grid.batches:
        start = best_start(rows, batch)
        for size in sweep.grid.world_sizes:
            here = [one for one in rows if one.row.start == start and one.row.setting.world_size == size]
            parts = [f"{_rule(one.row)} {signed(one.change)}" for one in here if one.change is not None]
            if start is not None and parts:
                said.append(
                    f"From ({named(start)}), the best of one device, to {size} devices the accuracy changes by: "
                    f"{', '.join(parts)} ({_pairs(here)})."
                )
    return said


def _rule(row: Row) -> str:
    climb = " after warm-up" if row.rule == LINEAR_WARMUP else ""
    return f"{row.rule.removesuffix('-warmup')} (lr {row.setting.lr:g}{climb})"


def _pairs(rows: list[Found]) -> str:
    counts = sorted({len(one.nets) for one in rows})
    return f"{'-'.join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))} seed(s)"
