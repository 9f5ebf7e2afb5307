"""What exchanging gradients can cost: sweeps of all_reduce over message sizes, and the straight line through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from suite.records.baselines import Baseline
from suite.records.record import CollectiveRecord, IntervalRecord, Record
from suite.render.figures import as_float, interval, number
from suite.render.html.bounds import Rows, bounded
from suite.render.html.chart import MAX_SERIES, Axis, Chart, Point, Series, figure

MAX_CHARTS = 6
_PREFIXES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True)
class View:
    """What the template shows: a chart for each world size, the fits, every point, and what failed."""

    charts: tuple[Markup, ...]
    fits: Rows[tuple[str, ...]]
    points: Rows[tuple[str, ...]]
    failed: Rows[tuple[str, str]]


def view(record: Record, baseline: Baseline | None) -> View | None:
    """None where no sweep was made."""
    sweeps = record.collectives
    if not sweeps:
        return None
    measured = [sweep for sweep in sweeps if sweep.points]
    sizes = sorted({sweep.world_size for sweep in measured})[:MAX_CHARTS]
    fitted = [sweep for sweep in sweeps if sweep.alpha_s is not None or sweep.beta_s_per_byte is not None]
    points = [(sweep, number) for sweep in measured for number in range(len(sweep.points))]
    failed = [(_name(sweep, with_size=True), sweep.error) for sweep in sweeps if sweep.error]
    return View(
        charts=tuple(figure(_chart(size, [sweep for sweep in measured if sweep.world_size == size])) for size in sizes),
        fits=bounded(map(_fit, fitted), len(fitted)),
        points=bounded((_point(*pair) for pair in points), len(points)),
        failed=bounded(failed, len(failed)),
    )


def size_text(count: int) -> str:
    """'504.2 KiB'."""
    for unit, name in _PREFIXES:
        if count >= unit:
            return f"{number(as_float(count) / unit, '.4g')} {name}"
    return f"{count} B"


def _name(sweep: CollectiveRecord, *, with_size: bool) -> str:
    return f"{sweep.collective}, {sweep.algorithm}" + (f", k = {sweep.world_size}" if with_size else "")


def _chart(world_size: int, sweeps: Sequence[CollectiveRecord]) -> Chart:
    shown = sweeps[:MAX_SERIES]
    sizes = sorted({as_float(point.size_bytes) for sweep in shown for point in sweep.points})
    ticks = tuple((size, size_text(int(size))) for size in sizes if size < float("inf"))
    return Chart(
        title=f"Bus bandwidth of {sweeps[0].collective}, k = {number(world_size, 'd')}",
        x=Axis("message", log=True, ticks=ticks if len(ticks) <= 5 else ticks[:: -(-len(ticks) // 5)], form=".3g"),
        y=Axis("busbw, GB/s", log=True, form=".3g"),
        series=tuple(
            Series(sweep.algorithm, tuple(Point(as_float(p.size_bytes), p.busbw_gb_per_s) for p in sweep.points))
            for sweep in shown
        ),
        description="Bus bandwidth over message size: what a link would have to carry, whatever the world size.",
    )


def _fit(sweep: CollectiveRecord) -> tuple[str, ...]:
    """Alpha in microseconds; the inverse of beta in GB/s, whose ends change places."""
    beta, rate = sweep.beta_s_per_byte, "-"
    if beta is not None and beta.estimate > 0:
        ends = [bound for bound in (beta.high, beta.low) if bound is not None and bound > 0]
        low, high = (1 / bound for bound in ends) if len(ends) == 2 else (None, None)
        rate = interval(
            IntervalRecord.model_construct(estimate=1 / beta.estimate, low=low, high=high), ".3g", factor=1e-9
        )
    return (
        sweep.algorithm,
        number(sweep.world_size, "d"),
        interval(sweep.alpha_s, ".1f", factor=1e6),
        interval(beta, ".3g", factor=1e9),
        rate,
    )


def _point(sweep: CollectiveRecord, index: int) -> tuple[str, ...]:
    point = sweep.points[index]
    expected = "-"
    if sweep.alpha_s is not None and sweep.beta_s_per_byte is not None:
        line_s = sweep.alpha_s.estimate + sweep.beta_s_per_byte.estimate * as_float(point.size_bytes)
        expected = number(line_s * 1e6, ".1f")
    return (
        sweep.algorithm,
        number(sweep.world_size, "d"),
        size_text(point.size_bytes),
        interval(point.time_s, ".1f", factor=1e6),
        expected,
        number(point.algbw_gb_per_s, ".3g"),
        number(point.busbw_gb_per_s, ".3g"),
    )
