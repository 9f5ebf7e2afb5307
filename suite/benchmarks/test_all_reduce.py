"""How fast the machine exchanges: one item for each collective, algorithm and world size. It has no verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from suite.benchmarks.replay import Clock, replay
from suite.plan.collectives import CollectiveCell
from suite.records.record import CollectiveRecord
from suite.render import commands

if TYPE_CHECKING:
    from suite.run.execute import RunResult

CLOCK = Clock()


@pytest.mark.scaling
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")  # an ERROR has no samples to hand over
@pytest.mark.benchmark(timer=CLOCK, group="collectives: seconds a call of the most bytes")
def test_all_reduce(
    all_reduce_cell: CollectiveCell,
    scaling_run: RunResult,
    benchmark: Any,
    request: pytest.FixtureRequest,
) -> None:
    """Fails where the algorithm could not be timed, or left something other than the sum; otherwise it passes."""
    found = scaling_run.collective(all_reduce_cell)
    request.node.user_properties.extend(properties(found))
    if found.error:
        again = commands.collective(scaling_run.record, found)
        pytest.fail(f"ERROR: {found.error}\n  see it again: {again}", pytrace=False)
    largest = max(found.points, key=lambda point: point.size_bytes)
    figures = {
        "size_bytes": largest.size_bytes,
        "algbw_gb_per_s": largest.algbw_gb_per_s,
        "busbw_gb_per_s": largest.busbw_gb_per_s,
    }
    about = {"cell": all_reduce_cell.id, "run_id": scaling_run.record.run_id}
    told = {**dict(properties(found)), "oversubscribed": found.oversubscribed}
    replay(benchmark, CLOCK, largest.samples_s, {**about, **figures, **told})


def properties(found: CollectiveRecord) -> list[tuple[str, str]]:
    """The line through a sweep and its best bandwidth, for JUnit; what a sweep does not have is left out."""
    marked = [("oversubscribed", "true")] if found.oversubscribed else []
    line = {"alpha_s": found.alpha_s, "beta_s_per_byte": found.beta_s_per_byte}
    parts = [(name, f"{part.estimate:.6g}") for name, part in line.items() if part is not None]
    best = [f"{max(point.busbw_gb_per_s for point in found.points):.6g}"] if found.points else []
    return [*marked, *parts, *(("best_busbw_gb_per_s", busbw) for busbw in best)]
