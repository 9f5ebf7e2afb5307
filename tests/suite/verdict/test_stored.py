"""The ratio of a cell to accepted runs: its words, its interval by formulas written down again, and its coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def held(candidate: float, accepted: list[Run]) -> RunDifference:
    return difference(Run(candidate, 6, HOST), accepted)


def misses(found: RunDifference) -> bool:
    return not found.ratio.low <= 1 <= found.ratio.high


@pytest.mark.parametrize(
    ("accepted", "pin", "said"),
    [
        (runs(0.0, 0.0), None, "the 2 accepted run(s)"),
        (runs(0.0, 0.0, 0.0, host="there"), None, "the 3 accepted run(s), of another host"),
        (runs(0.5, 0.501, 0.499), runs(0.0)[0], "the pinned run"),
        (runs(0.5, 0.501, 0.499), runs(0.0, host="there")[0], "the pinned run, of another host"),
    ],
)
def test_few_runs_those_of_another_host_and_a_pin_give_a_ratio_alone(
    accepted: list[Run], pin: Run | None, said: str
) -> None:
    found = difference(runs(0.7)[0], accepted, pin)
    assert found.ratio.estimate == pytest.approx(math.exp(0.7))
    assert (found.ratio.low, found.ratio.high) == (None, None)
    assert found.said == f"101.4% slower than {said}"


def test_runs_that_agree_give_an_interval_in_words_and_in_figures() -> None:
    found = held(math.log(1.2), runs(*(math.log(value) for value in (1.0, 1.01, 0.99, 1.0, 1.0))))
    assert found.ratio.estimate == pytest.approx(1.2, rel=1e-4)
    assert found.ratio.low == pytest.approx(1.174, abs=0.001)
    assert found.ratio.high == pytest.approx(1.226, abs=0.001)
    assert found.said == "20.0% slower than the 5 accepted run(s) (95 %: 17.4% slower to 22.6% slower)"


def begun(*hours: float | None, host: str = HOST) -> list[Run]:
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


def test_runs_of_other_hosts_are_no_level_and_no_spread() -> None:
    here = runs(0.0, 0.02, -0.02)
    assert held(0.1, here + runs(0.5, 0.9, host="there")) == held(0.1, here)


def test_the_interval_is_that_of_one_further_run() -> None:
    accepted = (0.00, 0.02, -0.02, 0.01)
    half = t(3, 0.025) * math.sqrt(stats.tvar(accepted) * (1 + 1 / 4))
    ratio, delta = held(0.1, runs(*accepted)).ratio, 0.1 - 0.0025
    expected = [math.exp(delta), math.exp(delta - half), math.exp(delta + half)]
    assert [ratio.estimate, ratio.low, ratio.high] == pytest.approx(expected, rel=1e-9)


def test_runs_are_an_hour_apart_from_the_last_that_counts() -> None:
    hours = (2.0, 0.0, 0.5, None, 0.99, 1.0, 1.0, 1.5)
    given = [Run(float(number), started_s=hour and hour * APART_S) for number, hour in enumerate(hours)]
    assert [run.started_s for run in hours_apart(given)] == [0.0, APART_S, 2 * APART_S]
