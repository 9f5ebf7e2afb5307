"""The benchmark matrix: one item a cell, each reading its part of the run that all of them share."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from suite.benchmarks.replay import Clock, replay
from suite.plan.cells import Cell, arm
from suite.plugin import CONFIG, ScalingWarning
from suite.records.record import CellRecord, IntervalRecord, WaterfallRecord
from suite.render import commands
from suite.run import samples
from suite.verdict import Outcome

if TYPE_CHECKING:
    from suite.run.execute import RunResult

CLOCK = Clock()
FIGURES = ("sec_per_epoch", "samples_per_s", "tokens_per_s", "device_flop_per_s", "efficiency", "speedup", "slowdown")


@pytest.mark.scaling
@pytest.mark.filterwarnings("always::suite.plugin.ScalingWarning")  # no failure, also where a project makes them errors
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")  # a cell that was not timed has no samples
@pytest.mark.benchmark(timer=CLOCK, group="scaling: seconds a step")
def test_scaling(
    scaling_cell: Cell,
    scaling_run: RunResult,
    benchmark: Any,
    request: pytest.FixtureRequest,
) -> None:
    """The cell's verdict: FAIL and ERROR fail, INCONCLUSIVE skips (or fails, as the user wishes), the rest passes."""
    settings = request.config.stash[CONFIG]
    found = scaling_run.cell(scaling_cell)
    request.node.user_properties.extend(properties(found))
    report = os.path.relpath(scaling_run.folder, settings.root)
    again = f"\n  see it again: {commands.only(scaling_run.record, [found])}"
    request.node.user_properties.extend([("run_id", scaling_run.record.run_id), ("report", report)])
    if found.outcome is Outcome.ERROR:
        pytest.fail(f"ERROR: {found.reason}\n{found.details}{again}", pytrace=False)
    own = arm("candidate", scaling_cell.trainer, scaling_cell)
    replay(
        benchmark,
        CLOCK,
        samples.step_samples_s(scaling_run.observations, own),
        {
            "cell": found.id,
            "verdict": found.outcome.value,
            "run_id": scaling_run.record.run_id,
            "oversubscribed": found.oversubscribed,
        },
    )
    if found.outcome is Outcome.FAIL:
        pytest.fail(f"FAIL: {found.reason}{again}", pytrace=False)
    if found.outcome is Outcome.INCONCLUSIVE:
        message = f"INCONCLUSIVE: {found.reason}"
        pytest.fail(message + again, pytrace=False) if settings.inconclusive == "fail" else pytest.skip(message)
    if found.outcome is Outcome.NO_BASELINE:
        message = "NO BASELINE: accept this run (--scaling-accept), or measure a base in it (--scaling-against)"
        if settings.require_baseline and not settings.accept:  # which makes this run the baseline
            pytest.fail(message + again, pytrace=False)
        warnings.warn(ScalingWarning(message), stacklevel=1)
    if found.warning:
        warnings.warn(ScalingWarning(f"{found.id}: {found.warning}"), stacklevel=1)


def properties(cell: CellRecord) -> list[tuple[str, str]]:
    """A cell's verdict, figures and named cause of lost time, for JUnit; what a cell does not have is left out."""
    found = [("verdict", cell.outcome.value), ("reason", cell.reason)]
    if cell.oversubscribed:
        found.append(("oversubscribed", "true"))
    for name in FIGURES:
        figure: IntervalRecord | None = getattr(cell, name)
        if figure is not None:
            found.append((name, f"{figure.estimate:.6g}"))
    texts = {name: getattr(cell, name) for name in ("efficiency_note", "speedup_note", "accuracy_note", "warning")}
    found += [(name, text) for name, text in texts.items() if text]
    if cell.accuracy is not None:
        found.append(("accuracy", f"{cell.accuracy:.4f}"))
    if cell.test_loss is not None:
        found.append(("test_loss", f"{cell.test_loss:.4f}"))
    return found + (_lost_time(cell.own_waterfall) if cell.own_waterfall else [])


def _lost_time(waterfall: WaterfallRecord) -> list[tuple[str, str]]:
    if not any(bar.step_s.estimate > 0 for bar in waterfall.bars):
        return []
    found = [("lost_time", waterfall.sentence)]
    if waterfall.named is None:
        return found
    largest = waterfall.bars[waterfall.named]
    cause = ("largest_cause", " + ".join(largest.causes))
    return [cause, ("largest_cause_s", f"{largest.step_s.estimate:.6g}"), *found]


@pytest.mark.gpu
def test_cuda_devices_are_there() -> None:
    """Keeps `-m gpu` from selecting nothing where CUDA shows no device; the plugin turns it into a failure there."""
