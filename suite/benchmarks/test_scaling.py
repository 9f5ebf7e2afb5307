"""The benchmark matrix: one item a cell, each reading its part of the run that all of them share."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from suite.benchmarks.replay import CLOCK, replay
from suite.plan.cells import Cell
from suite.plugin import CONFIG, ScalingWarning, result_of
from suite.records.record import CellRecord, WaterfallRecord, oversubscribed_mark
from suite.render import commands
from suite.verdict import Outcome
from suite.verdict.metrics import Interval

if TYPE_CHECKING:
    from suite.run.execute import RunResult

NO_BASELINE = "NO BASELINE: accept this run (--scaling-accept), or measure a base in it (--scaling-against)"
FIGURES = ("sec_per_epoch", "samples_per_s", "tokens_per_s", "device_flop_per_s", "efficiency", "speedup", "slowdown")


@pytest.mark.scaling
@pytest.mark.filterwarnings("always::suite.plugin.ScalingWarning")  # no failure, also where a project makes them errors
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")  # a cell that was not timed has no samples
@pytest.mark.benchmark(timer=CLOCK, group="scaling: seconds a step")
def test_scaling(
    scaling_cell: Cell, scaling_run: RunResult | str, benchmark: Any, request: pytest.FixtureRequest
) -> None:
    """The cell's verdict: FAIL and ERROR fail, INCONCLUSIVE skips (or fails, as the user wishes), the rest passes."""
    settings = request.config.stash[CONFIG]
    run = result_of(scaling_run, request)
    cell = run.cell(scaling_cell)
    mark = oversubscribed_mark(cell)
    request.node.user_properties.extend(properties(cell))
    report = os.path.relpath(run.folder, settings.root)
    again = f"\n  see it again: {commands.only(run.record, [cell])}"
    request.node.user_properties.extend([("run_id", run.record.run_id), ("report", report)])
    if cell.outcome is Outcome.ERROR:
        pytest.fail(f"ERROR{mark}: {cell.reason}\n{cell.details}{again}", pytrace=False)
    about = {"cell": cell.id, "verdict": cell.outcome.value, "run_id": run.record.run_id}
    replay(benchmark, run.step_samples_s(scaling_cell), {**about, "oversubscribed": cell.oversubscribed})
    if cell.outcome is Outcome.FAIL:
        pytest.fail(f"FAIL{mark}: {cell.reason}{again}", pytrace=False)
    if settings.require_baseline and not settings.accept and lacks_baseline(cell):  # accepting makes it the baseline
        pytest.fail(NO_BASELINE + again, pytrace=False)
    if cell.outcome is Outcome.INCONCLUSIVE:
        message = f"INCONCLUSIVE: {cell.label}: {cell.reason}"
        pytest.fail(message + again, pytrace=False) if settings.inconclusive == "fail" else pytest.skip(message)
    if cell.outcome is Outcome.NO_BASELINE:
        warnings.warn(ScalingWarning(NO_BASELINE), stacklevel=1)
    if cell.warning:
        warnings.warn(ScalingWarning(f"{cell.label}: {cell.warning}"), stacklevel=1)


def lacks_baseline(cell: CellRecord) -> bool:
    """Return whether a cell has nothing to be compared with, also where something else has decided it or may."""
    return not any(check.rule in ("time", "drift", "stored") for check in cell.checks)


def properties(cell: CellRecord) -> list[tuple[str, str]]:
    """Return a cell's verdict, figures and named cause of lost time, for JUnit, without those that it does not have."""
    pairs = [("verdict", cell.outcome.value), ("reason", cell.reason)]
    if cell.oversubscribed:
        pairs.append(("oversubscribed", "true"))
    for name in FIGURES:
        figure: Interval | None = getattr(cell, name)
        if figure is not None:
            pairs.append((name, f"{figure.estimate:.6g}"))
    shown = [missing for missing in cell.missing if missing.figure in ("efficiency", "speedup", "accuracy")]
    texts = [*((f"{missing.figure}_note", missing.why) for missing in shown), ("warning", cell.warning)]
    pairs += [(name, text) for name, text in texts if text]
    if cell.accuracy is not None:
        pairs.append(("accuracy", f"{cell.accuracy:.4f}"))
    if cell.test_loss is not None:
        pairs.append(("test_loss", f"{cell.test_loss:.4f}"))
    return pairs + (_lost_time(cell.own_waterfall) if cell.own_waterfall else [])


def _lost_time(waterfall: WaterfallRecord) -> list[tuple[str, str]]:
    if not any(bar.step_s.estimate > 0 for bar in waterfall.bars):
        return []
    pairs = [("lost_time", waterfall.sentence)]
    if waterfall.named is None:
        return pairs
    largest = waterfall.bars[waterfall.named]
    cause = ("largest_cause", " + ".join(largest.causes))
    return [cause, ("largest_cause_s", f"{largest.step_s.estimate:.6g}"), *pairs]


@pytest.mark.gpu
def test_cuda_devices_are_there() -> None:
    """Keeps `-m gpu` from selecting nothing where CUDA shows no device; the plugin turns it into a failure there."""
