"""The benchmark matrix: one item a cell, each reading its part of the run that all of them share."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from suite import samples
from suite.cells import Cell, arm
from suite.plugin import CONFIG, Run, ScalingWarning
from suite.record import CellRecord
from suite.replay import Clock, replay
from suite.verdict import Outcome

CLOCK = Clock()


@pytest.mark.scaling
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")  # an ERROR has no samples to hand over
@pytest.mark.benchmark(timer=CLOCK, group="scaling: seconds a step")
def test_scaling(
    scaling_cell: Cell,
    scaling_run: Run,
    benchmark: Any,
    request: pytest.FixtureRequest,
) -> None:
    """The cell's verdict: FAIL and ERROR fail, INCONCLUSIVE skips (or fails, as the user wishes), the rest passes."""
    settings = request.config.stash[CONFIG]
    found = scaling_run.cell(scaling_cell)
    request.node.user_properties.extend(properties(found))
    if found.outcome is Outcome.ERROR:
        pytest.fail(f"ERROR: {found.reason}\n{found.details}", pytrace=False)
    own = arm("candidate", scaling_cell.trainer, scaling_cell)
    replay(
        benchmark,
        CLOCK,
        samples.step_samples_s(scaling_run.measurement, own),
        {"cell": scaling_cell.id, "verdict": found.outcome.value, "run_id": scaling_run.record.run_id},
    )
    if found.outcome is Outcome.FAIL:
        pytest.fail(f"FAIL: {found.reason}", pytrace=False)
    if found.outcome is Outcome.INCONCLUSIVE:
        message = f"INCONCLUSIVE: {found.reason}"
        pytest.fail(message, pytrace=False) if settings.inconclusive == "fail" else pytest.skip(message)
    if found.outcome is Outcome.NO_BASELINE:
        message = "NO BASELINE: accept this run (--scaling-accept), or measure a base in it (--scaling-against)"
        if settings.require_baseline:
            pytest.fail(message, pytrace=False)
        warnings.warn(ScalingWarning(message), stacklevel=1)
    if found.warning:
        warnings.warn(ScalingWarning(f"{scaling_cell.id}: {found.warning}"), stacklevel=1)


def properties(cell: CellRecord) -> list[tuple[str, str]]:
    """A cell's verdict and figures, for JUnit."""
    figures = {
        name: getattr(cell, name) for name in ("sec_per_epoch", "samples_per_s", "efficiency", "speedup", "slowdown")
    }
    found = [("verdict", cell.outcome.value), ("reason", cell.reason)]
    found += [(name, f"{figure.estimate:.6g}") for name, figure in figures.items() if figure is not None]
    return found + ([("accuracy", f"{cell.accuracy:.4f}")] if cell.accuracy is not None else [])


@pytest.mark.gpu
def test_cuda_devices_are_there() -> None:
    """Keeps `-m gpu` from selecting nothing where CUDA shows no device; the plugin turns it into a failure there."""
