"""How fast the machine exchanges: one item for each collective, algorithm and world size. It has no verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from suite.benchmarks.replay import CLOCK, replay
from suite.plan.cells import CollectiveCell
from suite.plugin import result_of
from suite.records.record import CollectiveRecord, oversubscribed_mark
from suite.render import commands

if TYPE_CHECKING:
    from suite.run.execute import RunResult


@pytest.mark.scaling
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")  # an ERROR has no samples to hand over
@pytest.mark.benchmark(timer=CLOCK, group="collectives: seconds a call of the most bytes")
def test_all_reduce(
    all_reduce_cell: CollectiveCell, scaling_run: RunResult | str, benchmark: Any, request: pytest.FixtureRequest
) -> None:
    """Fails where the algorithm could not be timed, or left something other than the sum; otherwise it passes."""
    run = result_of(scaling_run, request)
    sweep = run.collective(all_reduce_cell)
    request.node.user_properties.extend(properties(sweep))
    if sweep.error:
        again = commands.collective(run.record, sweep)
        pytest.fail(f"ERROR{oversubscribed_mark(sweep)}: {sweep.error}\n  see it again: {again}", pytrace=False)
    largest = max(sweep.points, key=lambda point: point.size_bytes)
    figures = {name: getattr(largest, name) for name in ("size_bytes", "algbw_gb_per_s", "busbw_gb_per_s")}
    about = {"cell": all_reduce_cell.id, "run_id": run.record.run_id}
    told = {**dict(properties(sweep)), "oversubscribed": sweep.oversubscribed}
    replay(benchmark, largest.samples_s, {**about, **figures, **told})


def properties(sweep: CollectiveRecord) -> list[tuple[str, str]]:
    """Return the line through a sweep and its best bandwidth, for JUnit; what a sweep does not have is left out."""
    marked = [("oversubscribed", "true")] if sweep.oversubscribed else []
    line = {"alpha_s": sweep.alpha_s, "beta_s_per_byte": sweep.beta_s_per_byte}
    parts = [(name, f"{part.estimate:.6g}") for name, part in line.items() if part is not None]
    best = [f"{max(point.busbw_gb_per_s for point in sweep.points):.6g}"] if sweep.points else []
    return [*marked, *parts, *(("best_busbw_gb_per_s", busbw) for busbw in best)]
