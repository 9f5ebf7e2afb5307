"""The rule that calls a block disturbed, and the resolution it allows for."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from pydantic import ValidationError

from suite.room.conditions import (
    LIMIT_CORES,
    PROTECTIVE,
    TICK_S,
    Conditions,
    GpuConditions,
    disturbed,
    interrupted,
    resolution_s,
)

QUIET: dict[str, Any] = {
    "elapsed_s": 0.5,
    "cores": 2,
    "steal": 0.0,
    "foreign": 0.02,
    "resolution": 0.07,
    "load": 1.9,
    "mhz": 2600.0,
}


def block(**differently: Any) -> Conditions:
    return Conditions.model_validate({**QUIET, **differently})


def gpu(**values: Any) -> Conditions:
    return block(gpus=(GpuConditions(index=3, **values),))


@pytest.mark.parametrize(
    "conditions",
    [
        block(),
        block(foreign=LIMIT_CORES + 0.06),
        block(steal=LIMIT_CORES + 0.06),
        block(foreign=None, steal=None, mhz=None),
        block(load=64.0, mhz=800.0),
        block(cores=64, foreign=0.64),
        gpu(mhz=1980, celsius=85, throttled=("sw_power_cap",), ecc_errors=2),
    ],
    ids=["idle", "foreign", "steal", "unknown", "load", "many cores", "power cap"],
)
def test_ordinary_conditions_are_not_disturbed(conditions: Conditions) -> None:
    assert disturbed(conditions) == ""


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        (block(foreign=LIMIT_CORES + 0.08), "other processes used 18% of a core"),
        (block(steal=0.5), "the hypervisor took 50% of a core"),
        (block(cores=64, foreign=0.73), "other processes used 73% of a core"),
        (gpu(throttled=("sw_power_cap", "hw_slowdown")), "GPU 3 was throttled (hw_slowdown)"),
        (gpu(newcomers=(41, 42)), "another process appeared on GPU 3 (pid 41, 42)"),
        (block(steal=1.0, foreign=1.0), "the hypervisor took 100% of a core; other processes used 100% of a core"),
    ],
)
def test_a_disturbance_is_named(conditions: Conditions, reason: str) -> None:
    assert disturbed(conditions) == reason


def test_a_card_that_protects_itself_is_disturbed() -> None:
    assert all(reason in disturbed(gpu(throttled=(reason,))) for reason in PROTECTIVE)


def test_the_rule_sees_no_duration() -> None:
    """Equal shares are judged alike, however long the block took."""
    for foreign in (0.1, 0.3):
        assert len({disturbed(block(foreign=foreign, elapsed_s=elapsed_s)) for elapsed_s in (0.01, 0.5, 60.0)}) == 1


@pytest.mark.parametrize("wrong", [{"foreign": math.nan}, {"steal": math.inf}, {"unheard_of": 1}, {"cores": "two"}])
def test_a_record_with_other_values_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        block(**wrong)


@pytest.mark.parametrize("processes", [1, 3, 9])
def test_the_resolution_is_three_standard_deviations_of_rounding(processes: int) -> None:
    """Exact CPU times, rounded down field by field as the kernel shows them, 20,000 times."""
    rng = random.Random(processes)

    def shown_growth() -> float:
        start, used = rng.uniform(0, 10 * TICK_S), rng.uniform(0, 30 * TICK_S)
        return (math.floor((start + used) / TICK_S) - math.floor(start / TICK_S)) * TICK_S - used

    def error() -> float:
        return sum(shown_growth() for _ in range(3)) - sum(shown_growth() for _ in range(2 * processes))

    errors = [error() for _ in range(20_000)]
    deviation = math.sqrt(sum(each**2 for each in errors) / len(errors))
    # The relative error of a standard deviation from n normal values is about 1/sqrt(2 n); four of them.
    assert resolution_s(processes) == pytest.approx(3 * deviation, rel=4 / math.sqrt(2 * len(errors)))
    assert sum(each > resolution_s(processes) for each in errors) / len(errors) < 0.0025  # .00135 if it were normal
    assert sum(each > resolution_s(processes) / 3 for each in errors) / len(errors) > 0.1  # .16: it is not just large


@pytest.mark.parametrize(
    ("others_ns", "expected"),
    [((), False), ((0, 0), False), ((50, 50), False), ((0, 51), True), ((51, 0), True), ((10**400, 0), True)],
)
def test_a_window_is_disturbed_where_others_had_more_than_a_twentieth_of_any_rank(
    others_ns: tuple[int, ...], expected: bool
) -> None:
    assert interrupted((1000, 1000), others_ns) == expected
