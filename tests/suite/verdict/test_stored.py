"""The ratio of a cell to accepted runs: its words, its interval by formulas written down again, and its coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
from scipy import stats

from suite.verdict.stored import (
    APART_S,
    KEPT_RUNS,
    MIN_BASELINE_RUNS,
    MOST_HOSTS,
    Run,
    RunDifference,
    RunSpread,
    difference,
    hours_apart,
    newest,
)
from tests.support.family import exceeds, t

HOST = "here"
TRIALS = 3000
COVERAGE = 0.95


def runs(*log_t: float, host: str = HOST, sessions: int = 6) -> list[Run]:
    return [Run(value, sessions, host) for value in log_t]


def held(candidate: float, accepted: list[Run], spread: RunSpread | None = None) -> RunDifference:
    return difference(Run(candidate, 6, HOST), accepted, spread)


def against_pin(candidate: float, pin: float, accepted: list[Run]) -> RunDifference:
    return difference(Run(candidate, 6, HOST), accepted, None, Run(pin, 6, HOST))


def misses(found: RunDifference) -> bool:
    """Whether the interval leaves out equal builds."""
    return not found.ratio.low <= 1 <= found.ratio.high


@pytest.mark.parametrize(
    ("accepted", "pin", "why"),
    [
        (runs(0.0, 0.0), None, "but how runs differ on this machine is not known from fewer than 3"),
        (runs(0.0, 0.0, 0.0, host="there"), None, "of another host"),
        (runs(0.0, 0.001, -0.001), runs(0.0, host="there")[0], "of another host"),
    ],
)
def test_without_an_interval_the_reason_is_given(accepted: list[Run], pin: Run | None, why: str) -> None:
    found = difference(runs(0.7)[0], accepted, pin=pin)
    assert found.ratio.estimate == pytest.approx(math.exp(0.7), rel=0.01)
    assert (found.ratio.low, found.ratio.high) == (None, None)
    assert found.said.endswith(f", {why}")


def test_runs_that_agree_give_an_interval_in_words_and_in_figures() -> None:
    found = held(math.log(1.2), runs(*(math.log(value) for value in (1.0, 1.01, 0.99, 1.0, 1.0))))
    assert found.ratio.estimate == pytest.approx(1.2, rel=1e-4)
    assert found.ratio.low == pytest.approx(1.174, abs=0.001)
    assert found.ratio.high == pytest.approx(1.226, abs=0.001)
    assert found.said == "20.0% slower than the 5 accepted run(s) (95 %: 17.4% slower to 22.6% slower)"


def begun(*hours: float | None, host: str = HOST) -> list[Run]:
    """Return runs that began at these hours."""
    return [Run(0.0, host=host, started_s=None if hour is None else hour * APART_S) for hour in hours]


@pytest.mark.parametrize(
    ("runs", "chosen"),
    [
        (begun(*range(20)), range(11, 20)),
        (begun(*[None] * 20), range(11, 20)),
        (begun(*range(5), *(100 + number / 10 for number in range(9))), [0, 1, 2, 3, 4, 5, 11, 12, 13]),
        (begun(*range(10), 9.1, 9.2), [*range(2, 10), 11]),
        ([run for hour in range(12) for host in "abc" for run in begun(hour, host=host)], range(9, 36)),
        ([run for hour in range(12) for run in begun(hour, host=str(hour))], range(12 - MOST_HOSTS, 12)),
    ],
    ids=["hours apart", "unknown times", "one sitting", "the newest stays", "three hosts", "a host for each run"],
)
def test_newest_runs_of_each_host_are_compared_with_and_those_hours_apart_first(
    runs: list[Run], chosen: Sequence[int]
) -> None:
    assert newest(runs) == list(chosen)


def test_kept_runs_are_the_smallest_number_within_a_fifth_of_the_best_bound() -> None:
    def bound(count: int) -> float:
        return float(stats.t.ppf(0.95, count - 1)) * math.sqrt(1 + 1 / count)

    best = float(stats.norm.ppf(0.95))
    assert bound(KEPT_RUNS) <= 1.2 * best < bound(KEPT_RUNS - 1)


@pytest.mark.parametrize("count", [MIN_BASELINE_RUNS, 5, KEPT_RUNS])
@pytest.mark.parametrize("sd", [0.01, 0.08])
def test_the_interval_covers_at_any_noise_while_runs_are_exchangeable(count: int, sd: float) -> None:
    logs = numpy.random.default_rng([count, int(sd * 1000)]).normal(0, sd, size=(TRIALS, count + 1))
    assert not exceeds(sum(misses(held(row[0], runs(*row[1:]))) for row in logs), TRIALS, 1 - COVERAGE)


def test_an_interval_for_the_mean_would_miss_too_often() -> None:
    """The interval that forgets that the new run has a spread of its own, on the same kind of draws."""
    logs = numpy.random.default_rng(3).normal(0, 0.08, size=(TRIALS, 6))
    error = logs[:, 1:].std(axis=1, ddof=1) / math.sqrt(5)
    off = abs(logs[:, 0] - logs[:, 1:].mean(axis=1)) > stats.t.ppf(0.975, 4) * error
    assert exceeds(int(off.sum()), TRIALS, 1 - COVERAGE)


def test_runs_of_one_hour_cover_far_too_rarely_to_decide_anything() -> None:
    """Three runs accepted within an hour differ by 1 %, the candidate's day by 8 %."""
    rng = numpy.random.default_rng(4)
    logs = numpy.hstack([rng.normal(0, 0.08, (TRIALS, 1)), rng.normal(0, 0.01, (TRIALS, 3))])
    assert sum(misses(held(row[0], runs(*row[1:]))) for row in logs) > 0.4 * TRIALS


@pytest.mark.parametrize("count", [1, 2])
def test_a_calibration_gives_few_runs_an_interval_that_covers(count: int) -> None:
    rng = numpy.random.default_rng(count)
    sd, df = 0.03, 8
    logs = rng.normal(0, sd, size=(TRIALS, count + 1))
    learned = sd * numpy.sqrt(rng.chisquare(df, TRIALS) / df)
    found = [held(row[0], runs(*row[1:]), RunSpread(s, df)) for row, s in zip(logs, learned, strict=True)]
    assert not exceeds(sum(map(misses, found)), TRIALS, 1 - COVERAGE)


def test_a_calibration_counts_only_where_runs_are_too_few() -> None:
    accepted = runs(-0.04, 0.0, 0.04)
    assert held(0.1, accepted, RunSpread(0.001, 50)) == held(0.1, accepted)


def test_runs_of_other_hosts_are_no_level_and_no_spread() -> None:
    here = runs(0.0, 0.02, -0.02)
    assert held(0.1, here + runs(0.5, 0.9, host="there")) == held(0.1, here)


def test_a_run_of_fewer_sessions_has_a_wider_interval() -> None:
    """Sessions differ by 6 % and runs by nothing else; accepted runs had 20 sessions, the candidate has 3."""
    rng = numpy.random.default_rng(7)
    trials, missed, wrong = 2000, 0, 0
    for _ in range(trials):
        accepted = [Run(s.mean(), 20, HOST) for s in rng.normal(0, 0.06, (6, 20))]
        own = rng.normal(0, 0.06, 3).mean()
        missed += misses(difference(Run(own, 3, HOST), accepted))
        wrong += misses(difference(Run(own, 20, HOST), accepted))
    assert not exceeds(missed, trials, 1 - COVERAGE)
    assert exceeds(wrong, trials, 1 - COVERAGE)


def test_slow_creep_shows_against_the_pin_and_not_against_the_newest_runs() -> None:
    """Half a percent a week, sixteen weeks: runs agree within 1.4 %, and the pin is 8 % away."""
    newest = runs(*(0.005 * week for week in range(7, 16)))
    assert not misses(held(0.08, newest))
    assert misses(against_pin(0.08, 0.0, newest))
    assert not misses(against_pin(0.0, 0.0, newest))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("count", [MIN_BASELINE_RUNS, KEPT_RUNS])
def test_the_interval_covers_against_the_pin(count: int, inside: bool) -> None:
    """Whether the pin is one of the newest runs or older than all."""
    logs = numpy.random.default_rng(count).normal(0, 0.03, size=(TRIALS, count + 2))
    newest = [runs(*(row[1:-1] if inside else row[2:])) for row in logs]
    missed = sum(misses(against_pin(row[0], row[1], near)) for row, near in zip(logs, newest, strict=True))
    assert not exceeds(missed, TRIALS, 1 - COVERAGE)


def test_an_interval_that_ignores_the_pins_own_error_would_miss_too_often() -> None:
    logs = numpy.random.default_rng(13).normal(0, 0.03, size=(TRIALS, KEPT_RUNS + 2))
    sd = logs[:, 2:].std(axis=1, ddof=1)
    off = abs(logs[:, 0] - logs[:, 1]) > stats.t.ppf(0.975, KEPT_RUNS - 1) * sd
    assert exceeds(int(off.sum()), TRIALS, 1 - COVERAGE)


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
        self.holds(Run(0.1, sessions, HOST), runs(*self.accepted), 0.1 - 0.0025, variance, 3)

    def test_a_pin_is_the_level(self) -> None:
        pin, candidate = Run(-0.05, 3, HOST), runs(0.1)[0]
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
