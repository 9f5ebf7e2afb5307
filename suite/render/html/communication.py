"""What exchanging gradients can cost: sweeps of collectives over message sizes, and the straight line through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.records.record import CollectivePoint, CollectiveRecord, Record, oversubscribed_mark
from suite.render import commands
from suite.render.figures import interval, number, size
from suite.render.html.chart import MAX_SERIES, Axis, Chart, Point, Series, figure
from suite.render.html.environment import bounded, macro
from suite.verdict.metrics import Interval

MAX_CHARTS = 6
MAX_TICKS = 5


def sweeps(record: Record) -> Mapping[str, object] | None:
    """Return charts by collective and world size, fits, points, and what failed; None where no sweep was made."""
    measured = [sweep for sweep in record.collectives if sweep.points]
    kinds = sorted({(sweep.collective, sweep.world_size) for sweep in measured})[:MAX_CHARTS]
    fitted = [sweep for sweep in record.collectives if sweep.alpha_s is not None or sweep.beta_s_per_byte is not None]
    points = [(sweep, point) for sweep in measured for point in sweep.points]
    failed = [
        (
            f"{sweep.collective}, {sweep.algorithm}, k = {sweep.world_size}{oversubscribed_mark(sweep)}",
            sweep.error,
            macro("command", commands.collective(record, sweep)),
        )
        for sweep in record.collectives
        if sweep.error
    ]
    if not record.collectives:
        return None
    return {
        "charts": [
            figure(_chart(kind[1], [sweep for sweep in measured if (sweep.collective, sweep.world_size) == kind]))
            for kind in kinds
        ],
        "fits": bounded(map(_fit, fitted), len(fitted)),
        "points": bounded((_point(*pair) for pair in points), len(points)),
        "failed": bounded(failed, len(failed)),
    }


def _chart(world_size: int, sweeps: Sequence[CollectiveRecord]) -> Chart:
    shown = sweeps[:MAX_SERIES]
    sizes = sorted({point.size_bytes for sweep in shown for point in sweep.points})
    named = sizes[:: -(-len(sizes) // MAX_TICKS)]
    return Chart(
        title=f"Bus bandwidth of {sweeps[0].collective}, k = {number(world_size, 'd')}{oversubscribed_mark(sweeps[0])}",
        x=Axis("message", log=True, ticks=tuple((count, size(count)) for count in named), form=".3g"),
        y=Axis("busbw, GB/s", log=True, form=".3g"),
        series=tuple(
            Series(sweep.algorithm, tuple(Point(p.size_bytes, p.busbw_gb_per_s) for p in sweep.points))
            for sweep in shown
        ),
        description="Bus bandwidth over message size: what a link would have to carry, whatever the world size.",
    )


def _name(sweep: CollectiveRecord) -> str:
    which = "" if sweep.collective == "all_reduce" else f", {sweep.collective}"
    return f"{sweep.algorithm}{which}{oversubscribed_mark(sweep)}"


def _fit(sweep: CollectiveRecord) -> tuple[str, ...]:
    """Return alpha in microseconds, beta in seconds per GB, and its inverse in GB/s, whose bounds change places."""
    beta, rate = sweep.beta_s_per_byte, None
    if beta is not None and beta.estimate > 0:
        bounds = [1 / bound for bound in (beta.high, beta.low) if bound is not None and bound > 0]
        rate = Interval(1 / beta.estimate, *(bounds if len(bounds) == 2 else ()))
    return (
        _name(sweep),
        number(sweep.world_size, "d"),
        interval(sweep.alpha_s, ".1f", factor=1e6),
        interval(beta, ".3g", factor=1e9),
        interval(rate, ".3g", factor=1e-9),
    )


def _point(sweep: CollectiveRecord, point: CollectivePoint) -> tuple[str, ...]:
    expected = "-"
    if sweep.alpha_s is not None and sweep.beta_s_per_byte is not None:
        line_s = sweep.alpha_s.estimate + sweep.beta_s_per_byte.estimate * point.size_bytes
        expected = number(line_s * 1e6, ".1f")
    return (
        _name(sweep),
        number(sweep.world_size, "d"),
        size(point.size_bytes),
        interval(point.time_s, ".1f", factor=1e6),
        expected,
        number(point.algbw_gb_per_s, ".3g"),
        number(point.busbw_gb_per_s, ".3g"),
    )
