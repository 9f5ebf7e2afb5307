"""Figures of verdicts on accepted runs of other times, by formulas written down again here."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from suite.verdict.outcome import ALPHA_PASS
from suite.verdict.stored import APART_S, Run, RunSpread, clears, difference, hours_apart
from tests.support.rates import t

HERE = "here"


def runs(*log_t: float, host: str = HERE, sessions: int = 6, log_se: float | None = 0.01) -> list[Run]:
    return [Run(value, sessions, log_se, host, number * APART_S) for number, value in enumerate(log_t)]


class TestDifference:
    """A run against accepted ones of other times; `ratio` writes down the interval that it should have."""

    accepted = (0.00, 0.02, -0.02, 0.01)

    def holds(self, candidate: Run, accepted: list[Run], delta: float, variance: float, df: float, **more: Any) -> None:
        ratio = difference(candidate, accepted, **more).ratio
        half = t(df, 0.025) * math.sqrt(variance)
        expected = [math.exp(delta), math.exp(delta - half), math.exp(delta + half)]
        assert [ratio.estimate, ratio.low, ratio.high] == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize(
        ("candidate", "excess", "df"),
        [
            (Run(0.1, 6, 0.05, HERE), 0.0, 3),
            (Run(0.1, 6, None, HERE), 0.0, 3),
            (Run(0.1, 3, 0.05, HERE), 0.05**2 - 0.75 * 0.01**2, 2),
            (Run(0.1, 2, 0.05, HERE), 0.05**2 - 0.75 * 0.01**2, 1),
            (Run(0.1, 3, 0.001, HERE), 0.75 * 6 * 0.01**2 / 3 - 0.75 * 0.01**2, 2),
        ],
        ids=["as many sessions", "of unknown error", "fewer", "two", "fewer and as sure"],
    )
    def test_a_run_of_fewer_sessions_adds_its_own_error(self, candidate: Run, excess: float, df: int) -> None:
        accepted = [*runs(*self.accepted[:3]), *runs(self.accepted[3], log_se=None)]
        variance = stats.tvar(self.accepted) * (1 + 1 / 4) + excess
        self.holds(candidate, accepted, 0.1 - 0.0025, variance, df)

    def test_a_pin_is_the_level_and_adds_its_own_error(self) -> None:
        pin, candidate = Run(-0.05, 3, 0.04, HERE), runs(0.1)[0]
        variance = stats.tvar(self.accepted) * 2 + 0.04**2 - 0.01**2
        self.holds(candidate, runs(*self.accepted), 0.15, variance, 2, pin=pin)
        said = difference(candidate, runs(*self.accepted), pin=pin).said
        assert said.startswith(f"{math.expm1(0.15):.1%} slower than the pinned run (95 %: ")

    @pytest.mark.parametrize("accepted", [(0.0,), (0.0, 0.02)])
    def test_few_runs_are_pooled_with_the_calibration(self, accepted: tuple[float, ...]) -> None:
        n, own = len(accepted), stats.tvar(accepted) if len(accepted) > 1 else 0.0
        variance = ((n - 1) * own + 8.6 * 0.03**2) / (n - 1 + 8.6) * (1 + 1 / n)
        delta = 0.1 - sum(accepted) / n
        self.holds(runs(0.1)[0], runs(*accepted), delta, variance, int(n - 1 + 8.6), spread=RunSpread(0.03, 8.6))

    def test_hosts_share_the_spread_around_their_own_levels(self) -> None:
        accepted = runs(0.1, 0.12) + runs(0.0, 0.03, host="b") + runs(0.5, host="c")
        self.holds(runs(0.2)[0], accepted, 0.09, (0.0002 + 0.00045) / 2 * (1 + 1 / 2), 2)

    @pytest.mark.parametrize("pin", [None, Run(-0.05, 6, 0.01, "b")])
    @pytest.mark.parametrize("third", [HERE, "d"])
    def test_the_newest_run_of_each_host_counts_where_too_few_share_one(self, third: str, pin: Run | None) -> None:
        newest = (0.01, -0.01, 0.03)
        accepted = runs(newest[0], host=third) + runs(newest[1], host="b") + runs(newest[2], host="c")
        against = sum(newest) / 3 if pin is None else pin.log_t
        variance = stats.tvar(newest) * (1 + 1 / 3 if pin is None else 2)
        self.holds(runs(0.2)[0], accepted, 0.2 - against, variance, 2, pin=pin)

    def test_older_runs_of_each_host_do_not_count(self) -> None:
        accepted = [
            run for host, new in zip("bcd", (0.01, -0.01, 0.03), strict=True) for run in runs(5, 7, new, host=host)
        ]
        self.holds(runs(0.2)[0], accepted, 0.19, stats.tvar((0.01, -0.01, 0.03)) * (1 + 1 / 3), 2)

    @pytest.mark.parametrize(
        ("candidate", "host"), [(Run(0.1, 3, None, HERE), HERE), (Run(0.1, 1, 0.01, HERE), HERE), (runs(0.1)[0], "b")]
    )
    def test_no_interval_where_an_error_or_a_level_is_not_known(self, candidate: Run, host: str) -> None:
        assert difference(candidate, runs(*self.accepted, host=host)).ratio.low is None


class TestClears:
    """Whether accepted runs clear a cell: just on one side of each limit, and just on the other."""

    margin = math.log1p(0.05)
    shape = (-1.0, -0.5, 0.0, 0.5, 1.0)
    widest = margin / 3 / math.sqrt(stats.tvar(shape) * 4 / stats.chi2.ppf(0.05, 4))

    def test_the_upper_limit_of_the_spread_is_a_third_of_the_tolerance(self) -> None:
        for share, cleared in ((0.999, True), (1.001, False)):
            accepted = runs(*(self.widest * share * value for value in self.shape))
            assert clears(runs(0.0)[0], accepted, 0.05) is cleared

    @pytest.mark.parametrize("pin", [None, runs(0.02)[0]])
    def test_the_estimate_is_below_half_the_tolerance(self, pin: Run | None) -> None:
        accepted = runs(*(0.1 + 0.001 * value for value in self.shape))
        level = 0.1 if pin is None else pin.log_t
        for off, cleared in ((-1e-6, True), (1e-6, False)):
            assert clears(runs(level + self.margin / 2 + off)[0], accepted, 0.05, pin) is cleared

    @pytest.mark.parametrize("pin", [None, Run(0.02, 4, 0.012, HERE)])
    def test_the_bound_is_below_the_tolerance(self, pin: Run | None) -> None:
        accepted = runs(*(0.1 + 0.002 * value for value in self.shape))
        of_runs = stats.tvar([run.log_t for run in accepted]) * (1.2 if pin is None else 2)
        excess = 0.017**2 - 0.01**2 + (0 if pin is None else 0.0001 * 6 / 4 - 0.01**2)
        limit = self.margin - t(2, ALPHA_PASS) * math.sqrt(of_runs + excess)
        assert 0 < limit < self.margin / 2
        for off, cleared in ((-1e-6, True), (1e-6, False)):
            new = Run((0.1 if pin is None else pin.log_t) + limit + off, 3, 0.017, HERE)
            assert clears(new, accepted, 0.05, pin) is cleared

    @pytest.mark.parametrize(
        ("candidate", "accepted", "pin", "cleared"),
        [
            (runs(0.0)[0], runs(*[0.0] * 5), None, True),
            (runs(0.0)[0], runs(*[0.0] * 4), None, False),
            (runs(0.0)[0], runs(*[0.0] * 4) + runs(*[0.0] * 5, host="b"), None, False),
            (runs(0.0)[0], runs(*[0.0] * 5), runs(0.0, host="b")[0], False),
            (Run(0.0, 6, None, HERE), runs(*[0.0] * 5), None, True),
            (Run(0.0, 3, None, HERE), runs(*[0.0] * 5), None, False),
            (runs(0.0)[0], runs(*[0.0] * 5), Run(0.0, 3, None, HERE), False),
        ],
        ids=["five", "four", "of another host", "pin of another host", "unknown error", "of fewer sessions", "pin"],
    )
    def test_whose_runs_and_sessions_count(
        self, candidate: Run, accepted: list[Run], pin: Run | None, cleared: bool
    ) -> None:
        assert clears(candidate, accepted, 0.05, pin) is cleared

    def test_runs_are_an_hour_apart_from_the_last_that_counts(self) -> None:
        hours = (2.0, 0.0, 0.5, None, 0.99, 1.0, 1.0, 1.5)
        given = [Run(float(number), started_s=hour and hour * APART_S) for number, hour in enumerate(hours)]
        assert [run.started_s for run in hours_apart(given)] == [0.0, APART_S, 2 * APART_S]
