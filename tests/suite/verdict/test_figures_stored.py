"""Figures of verdicts on accepted runs of other times, by formulas written down again here."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from suite.verdict.stored import APART_S, Run, RunSpread, difference, hours_apart
from tests.support.rates import t

HERE = "here"


def runs(*log_t: float, host: str = HERE, sessions: int = 6) -> list[Run]:
    return [Run(value, sessions, host) for value in log_t]


class TestDifference:
    """A run against accepted ones of other times; `ratio` writes down the interval that it should have."""

    accepted = (0.00, 0.02, -0.02, 0.01)

    def holds(self, candidate: Run, accepted: list[Run], delta: float, variance: float, df: float, **more: Any) -> None:
        ratio = difference(candidate, accepted, **more).ratio
        half = t(df, 0.025) * math.sqrt(variance)
        expected = [math.exp(delta), math.exp(delta - half), math.exp(delta + half)]
        assert [ratio.estimate, ratio.low, ratio.high] == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize(("sessions", "fewer"), [(9, 1.0), (6, 1.0), (3, 2.0), (1, 6.0)])
    def test_a_run_of_fewer_sessions_varies_by_as_many_times_more(self, sessions: int, fewer: float) -> None:
        variance = stats.tvar(self.accepted) * (fewer + 1 / 4)
        self.holds(Run(0.1, sessions, HERE), runs(*self.accepted), 0.1 - 0.0025, variance, 3)

    def test_a_pin_is_the_level(self) -> None:
        pin, candidate = Run(-0.05, 3, HERE), runs(0.1)[0]
        variance = stats.tvar(self.accepted) * (1 + 6 / 3)
        self.holds(candidate, runs(*self.accepted), 0.15, variance, 3, pin=pin)
        said = difference(candidate, runs(*self.accepted), pin=pin).said
        assert said.startswith(f"{math.expm1(0.15):.1%} slower than the pinned run (95 %: ")

    @pytest.mark.parametrize("accepted", [(0.0,), (0.0, 0.02)])
    def test_few_runs_are_pooled_with_the_calibration(self, accepted: tuple[float, ...]) -> None:
        n, own = len(accepted), stats.tvar(accepted) if len(accepted) > 1 else 0.0
        variance = ((n - 1) * own + 8.6 * 0.03**2) / (n - 1 + 8.6) * (1 + 1 / n)
        delta = 0.1 - sum(accepted) / n
        self.holds(runs(0.1)[0], runs(*accepted), delta, variance, int(n - 1 + 8.6), spread=RunSpread(0.03, 8.6))


def test_runs_are_an_hour_apart_from_the_last_that_counts() -> None:
    hours = (2.0, 0.0, 0.5, None, 0.99, 1.0, 1.0, 1.5)
    given = [Run(float(number), started_s=hour and hour * APART_S) for number, hour in enumerate(hours)]
    assert [run.started_s for run in hours_apart(given)] == [0.0, APART_S, 2 * APART_S]
