"""What a run says before it begins."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from suite.plan.base import Base
from suite.records.calibration import promise
from suite.room.quiet import available_cores
from suite.run import forecast
from suite.run.observations import Observations
from tests.support.measurements import arm, calibrated, cell, measurement, order, settings

AGAINST = Base("ref", "v1.0 (1111111)", commit="1" * 40)
CELLS = (cell(1), cell(2))


def about(**changes: object) -> Observations:
    """A run of two cells beside a base."""
    run = measurement(*CELLS, config=settings(against=AGAINST), **changes)
    run.bases, run.beside = {"base": AGAINST}, list(CELLS)
    return run


def test_cells_sessions_minutes_and_what_can_fail() -> None:
    [first, _] = forecast.lines(about(), 6, 10.0)
    assert first == (
        "plan: 2 cell(s) beside v1.0 (1111111), about 6 session(s) of 10 s, 1.0 min in all (budget 2.0 min); "
        "2 checks can fail"
    )


def test_what_is_over_already_is_counted() -> None:
    run = about(_begun=about().plan._begun - 120)
    assert "3.0 min in all" in forecast.lines(run, 6, 10.0)[0]


def test_of_a_rebuilt_baseline_the_plan_names_both_and_only_the_cells_in_doubt() -> None:
    run = measurement(*CELLS)
    run.bases = {"base": AGAINST, "pinned": Base("ref", "the pin", commit="2" * 40)}
    run.beside = [cell(2)]
    assert forecast.lines(run, 6, 10.0)[0].startswith(
        "plan: 1 cell(s) beside v1.0 (1111111), the pin, about 6 session(s)"
    )


def test_without_a_base_nothing_is_promised() -> None:
    assert len(forecast.lines(measurement(*CELLS), 6, 10.0)) == 1


def test_a_calibration_decides_nothing_and_promises_nothing() -> None:
    run = about()
    run.plan = replace(run.plan, config=settings(against=AGAINST, calibrate=12))
    assert len(forecast.lines(run, 12, 10.0)) == 1


@pytest.mark.parametrize(
    "known",
    [{}, {"calibration": calibrated(0.01, cell(1))}, {"calibration": calibrated(0.01, *CELLS, host="another")}],
    ids=["never calibrated", "one of two cells", "another host"],
)
def test_an_uncalibrated_machine_is_told_how_to_be_one(known: dict[str, object]) -> None:
    says = "plan: what slowdown it can promise is not known here: python -m suite calibrate measures that"
    assert forecast.lines(about(**known), 6, 10.0)[1] == says


def test_the_promise_is_that_of_the_noisiest_cell() -> None:
    quiet, loud = calibrated(0.005, cell(1)), calibrated(0.02, cell(2))
    run = about(calibration=quiet.model_copy(update={"entries": quiet.entries + loud.entries}))
    found = re.fullmatch(
        r"plan: a slowdown of (.+)% or more is found with 95% probability, by this machine's calibration",
        forecast.lines(run, 6, 10.0)[1],
    )
    assert found is not None
    assert float(found[1]) == pytest.approx(100 * promise(0.02, 2, 6, 0.05), abs=0.05)
    assert float(found[1]) > 100 * promise(0.005, 2, 6, 0.05) + 1


@pytest.mark.parametrize(("sd", "planned"), [(2.0, 6), (0.005, 2)], ids=["noise", "two sessions"])
def test_where_nothing_is_sure_to_be_found_it_says_so(sd: float, planned: int) -> None:
    run = about(calibration=calibrated(sd, *CELLS))
    assert forecast.lines(run, planned, 10.0)[1] == "plan: at this budget no slowdown is sure to be found; raise it"


class TestSessionSeconds:
    """What a session is expected to take, from one worker's start."""

    def test_every_process_starts_and_modes_of_one_trainer_share_theirs(self) -> None:
        run = measurement(cell(2), cell(2, mode="weak"))
        strong, weak, base = arm(2), arm(2, mode="weak"), arm(2, side="base")
        run.orders = {found: order(found) for found in (strong, weak, base)}
        one = forecast.session_s(run, [strong], 4.0) - forecast.ENDING_S
        assert one > 0
        assert forecast.session_s(run, [strong, weak], 4.0) - forecast.ENDING_S == pytest.approx(one)
        assert forecast.session_s(run, [strong, base], 4.0) - forecast.ENDING_S == pytest.approx(2 * one)
        assert forecast.session_s(run, [strong], 8.0) - forecast.ENDING_S == pytest.approx(2 * one)

    def test_a_process_a_device_costs_as_many_and_the_compiler_each(self) -> None:
        run = measurement(cell(2))
        run.orders = {arm(2): order(arm(2))}
        one = forecast.session_s(run, [arm(2)], 4.0) - forecast.ENDING_S
        run.orders[arm(2)]["processes"] = "per-device"
        two = forecast.session_s(run, [arm(2)], 4.0) - forecast.ENDING_S
        assert two == pytest.approx(2 * (1 + forecast.COMPILER_COST) * one)

    def test_cores_start_processes_at_the_same_time(self) -> None:
        run = measurement(cell(1))
        run.orders = {arm(1): order(arm(1))}
        expected = 4.0 / len(available_cores()) * (1 + forecast.MEASURE_SHARE) + forecast.ENDING_S
        assert forecast.session_s(run, [arm(1)], 4.0) == pytest.approx(expected)
