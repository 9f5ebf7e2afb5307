"""A pytest plugin (`-p tests.support.stand_in`) that replaces the measurement of a run with figures of its own.

Everything else is real: options, items, verdicts, record, reports, JUnit, pytest-benchmark's samples. Efficiency is
`EFFICIENCY` at every world size; a step of one device takes STAND_IN_STEP_S seconds (0.01 where that is not set).
After the last session the process gets the signal that STAND_IN_SIGNAL names, where that is set. Select cells only
(`-k lenet`): a sweep of a collective is an ERROR here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import asdict

import pytest

from suite.plan import cells
from suite.plan.cells import SINGLE, Arm
from suite.records.record import CollectiveRecord
from suite.run import campaign
from suite.run.observations import Observations
from suite.run.session import Say
from tests.support import measurements

EFFICIENCY = 0.8
SESSIONS = 4
STEP_S, SIGNAL = "STAND_IN_STEP_S", "STAND_IN_SIGNAL"


def pytest_configure(config: pytest.Config) -> None:
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setattr(campaign, "measure", _measure)


def _measure(run: Observations, say: Say, grown: Callable[[], None]) -> None:
    """Replace `suite.run.campaign.measure`, for the workload `lenet`."""
    arms = [arm for cell in run.plan.cells for arm in _timed(cell)]
    run.versions["candidate"] = measurements.VERSIONS
    run.planned = SESSIONS
    run.datasets[measurements.LENET.dataset] = measurements.job(arms[0]).dataset
    for _ in range(SESSIONS):
        measurements.add_sessions(run, {arm: _step_s(arm) for arm in arms}, 1)
        grown()
    run.collectives = tuple(
        CollectiveRecord(**asdict(sweep), devices=(), points=(), error="the stand-in times no collective")
        for sweep in run.plan.sweeps
    )
    if SIGNAL in os.environ:
        os.kill(os.getpid(), signal.Signals[os.environ[SIGNAL]])


def _timed(cell: cells.Cell) -> list[Arm]:
    own, plain = (cells.arm("candidate", trainer, cell) for trainer in (cell.trainer, SINGLE))
    return [own, own.on_one, plain.on_one]


def _step_s(arm: Arm) -> float:
    one_s = float(os.environ.get(STEP_S, "0.01"))
    if arm.world_size == 1:
        return one_s
    return one_s / EFFICIENCY / (arm.world_size if arm.mode == "strong" else 1)
