"""Every figure against a case worked by hand."""

from __future__ import annotations

import math

import numpy
import pytest
from scipy import stats

from suite.verdict import metrics


@pytest.mark.parametrize(("mode", "two_s"), [("strong", 0.5), ("weak", 1.0)])
def test_efficiency_is_perfect_when_two_devices_take_half_or_twice_the_batch_as_long(mode: str, two_s: float) -> None:
    assert math.exp(metrics.log_efficiency(math.log(1.0 / two_s), mode, 2)) == pytest.approx(1.0)


def test_speedup_is_k_times_the_efficiency_of_the_same_trainer() -> None:
    for mode in ("strong", "weak"):
        ratio = metrics.log_speedup(0.2, mode, 4) - metrics.log_efficiency(0.2, mode, 4)
        assert math.exp(ratio) == pytest.approx(4)


def test_the_short_last_batch_counts_by_its_samples() -> None:
    # 60,000 / 256 is 234 batches and one of 96: 234.375 steps' worth of samples, not 235.
    assert metrics.sec_per_epoch(1.0, 60_000, 256) == 234.375


def test_the_interval_is_students_t_on_logarithms() -> None:
    values = [1.0, 1.1, 1.3, 0.9]
    found = metrics.from_logs([math.log(value) for value in values])
    low, high = stats.t.interval(0.95, 3, loc=numpy.mean(numpy.log(values)), scale=stats.sem(numpy.log(values)))
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_one_session_gives_an_estimate_and_no_interval() -> None:
    assert metrics.from_logs([math.log(2.0)]) == metrics.Interval(pytest.approx(2.0))


def test_the_time_of_a_window_is_divided_by_its_steps() -> None:
    assert math.exp(metrics.log_step_s(200_000_000, steps=10)) == pytest.approx(0.02)


def test_the_middle_of_a_session_leaves_out_its_extremes() -> None:
    assert metrics.location([1.0, 2.0, 3.0, 1000.0]) == 2.5
    assert metrics.location([1.0, 2.0, 6.0]) == 3.0, "too few to leave any out"
