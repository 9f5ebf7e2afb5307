"""Marks are as rare as promised in series that never changed, and near the change in those that did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.stats import binom

from docs.evidence.marks import correlated
from suite.records import changes
from suite.records.changes import ALPHA, MIN_RUNS, Change

NOISE = 0.02
STEP = np.log(1.05)

Draw = Callable[[np.random.Generator, int], np.ndarray]

NOISES: dict[str, Draw] = {
    "normal": lambda rng, n: NOISE * rng.normal(size=n),
    "heavy tails": lambda rng, n: NOISE * rng.standard_t(2, size=n),
    "skewed": lambda rng, n: NOISE * rng.exponential(size=n),
}


def find(logs: Sequence[float] | np.ndarray, hosts: Sequence[str] | None = None) -> list[Change]:
    return changes.find(list(logs), hosts or ["a"] * len(logs))


def three_errors_rule(logs: np.ndarray) -> bool:
    """A wrong rule: the level changed where two means are three standard errors apart."""
    for cut in range(3, len(logs) - 2):
        before, after = logs[:cut], logs[cut:]
        error = np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
        if abs(after.mean() - before.mean()) > 3 * error:
            return True
    return False


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("runs", [10, 25, 50])
def test_series_that_never_changed_have_marks_as_rarely_as_promised(noise: str, runs: int) -> None:
    rng, series = np.random.default_rng(runs), 200
    marked = sum(bool(find(NOISES[noise](rng, runs))) for _ in range(series))
    assert marked <= binom.ppf(0.9999, series, ALPHA)


@pytest.mark.parametrize(("phi", "runs"), [(0.6, 20), (0.6, 50), (0.3, 50)])
def test_series_whose_runs_resemble_the_ones_before_them_have_marks_as_rarely_as_promised(
    phi: float, runs: int
) -> None:
    """The permutation test alone marks .28, .54 and .11 of these."""
    rng, series = np.random.default_rng(runs), 80
    marked = sum(bool(find(correlated(rng, runs, phi))) for _ in range(series))
    assert marked <= binom.ppf(0.9999, series, ALPHA)


def test_hosts_that_take_turns_and_wander_each_by_itself_make_no_marks() -> None:
    rng, series, marked = np.random.default_rng(11), 60, 0
    for _ in range(series):
        logs = np.empty(40)
        logs[::2], logs[1::2] = correlated(rng, 20, 0.6), 0.2 + correlated(rng, 20, 0.6)
        marked += bool(find(logs, ["a", "b"] * 20))
    assert marked <= binom.ppf(0.9999, series, ALPHA)


def test_a_clear_step_is_not_taken_for_runs_that_resemble_each_other() -> None:
    """Ten runs below ten others, a fifth apart, have an autocorrelation near 1."""
    rng = np.random.default_rng(12)
    assert sum(bool(find(stepped(rng, 10, 10, step=0.2))) for _ in range(30)) >= 28


def test_hosts_with_levels_and_noises_of_their_own_make_no_marks() -> None:
    rng, series, marked = np.random.default_rng(1), 200, 0
    for _ in range(series):
        hosts = rng.integers(3, size=40)
        logs = np.array([0.0, 0.2, -0.1])[hosts] + np.array([0.01, 0.03, 0.02])[hosts] * rng.normal(size=40)
        marked += bool(find(logs, [str(host) for host in hosts]))
    assert marked <= binom.ppf(0.9999, series, ALPHA)


def test_the_simulation_catches_a_rule_that_marks_too_often() -> None:
    rng, series = np.random.default_rng(30), 300
    marked = sum(three_errors_rule(NOISES["normal"](rng, 30)) for _ in range(series))
    assert marked > binom.ppf(0.9999, series, ALPHA)


def stepped(rng: np.random.Generator, before: int, after: int, step: float = STEP) -> np.ndarray:
    return NOISE * rng.normal(size=before + after) + np.repeat([0.0, step], [before, after])


def test_a_step_is_marked_near_its_place_and_with_its_size() -> None:
    rng, series = np.random.default_rng(2), 100
    found = [find(stepped(rng, 20, 20, step=2 * STEP)) for _ in range(series)]
    near = [next((mark for mark in marks if abs(mark.at - 20) <= 2), None) for marks in found]
    hits = [mark for mark in near if mark is not None]
    assert len(hits) >= 0.9 * series
    assert np.mean([mark.log_shift for mark in hits]) == pytest.approx(2 * STEP, abs=0.005)
    assert sum(len(marks) > 1 for marks in found) <= 0.1 * series


def test_a_step_is_marked_within_a_few_runs() -> None:
    rng, series = np.random.default_rng(3), 100
    found = sum(any(abs(mark.at - 30) <= 2 for mark in find(stepped(rng, 30, 6, step=2 * STEP))) for _ in range(series))
    assert found >= 0.7 * series


def test_a_slowdown_that_was_repaired_has_a_mark_at_either_end() -> None:
    rng = np.random.default_rng(5)
    logs = NOISE * rng.normal(size=46) + np.repeat([0.0, 2 * STEP, 0.0], [20, 6, 20])
    marks = find(logs)
    assert [mark.log_shift > 0 for mark in marks] == [True, False]
    assert [abs(mark.at - place) <= 1 for mark, place in zip(marks, (20, 26), strict=True)] == [True, True]


@pytest.mark.parametrize("outliers", [[0.3], [0.3, 0.3], [3.0]])
@pytest.mark.parametrize("place", [0, 7, 28])
def test_an_outlier_or_two_are_no_level(outliers: list[float], place: int) -> None:
    logs = NOISES["normal"](np.random.default_rng(6), 30)
    assert find(logs) == []
    logs[place : place + len(outliers)] += outliers
    assert find(logs) == []


def test_four_runs_in_a_row_are_a_level() -> None:
    """Shows that the test of outliers can fail."""
    logs = NOISES["normal"](np.random.default_rng(6), 30)
    logs[26:] += 0.3
    assert [mark.at for mark in find(logs)] == [26]


def test_a_new_host_is_not_marked_whatever_its_level() -> None:
    logs = stepped(np.random.default_rng(7), 15, 15, step=0.2)
    assert find(logs, ["a"] * 15 + ["b"] * 15) == []
    assert [mark.at for mark in find(logs)] == [15], "on one host it would be a change"


def test_a_step_is_seen_through_hosts_that_take_turns() -> None:
    rng, series, hosts = np.random.default_rng(8), 50, ["a", "b"] * 20
    levels = np.where(np.array(hosts) == "b", 0.5, 0.0)
    found = [find(stepped(rng, 20, 20, step=2 * STEP) + levels, hosts) for _ in range(series)]
    hits = [mark for marks in found for mark in marks if abs(mark.at - 20) <= 1]
    assert len(hits) == series
    assert np.mean([mark.log_shift for mark in hits]) == pytest.approx(2 * STEP, abs=0.005)
    assert sum(len(marks) > 1 for marks in found) <= 0.1 * series


def test_a_step_after_a_change_of_hosts_is_marked() -> None:
    logs = np.concatenate(
        [NOISES["normal"](np.random.default_rng(9), 10) - 0.4, stepped(np.random.default_rng(9), 15, 15, 2 * STEP)]
    )
    marks = find(logs, ["old"] * 10 + ["new"] * 30)
    assert [abs(mark.at - 25) <= 2 for mark in marks] == [True]


@pytest.mark.parametrize(
    ("logs", "hosts"), [(np.repeat([0.0, 1.0], 15), [str(n) for n in range(30)]), (np.ones(30), ["a"] * 30)]
)
def test_runs_on_different_hosts_and_equal_times_have_no_marks(logs: np.ndarray, hosts: list[str]) -> None:
    assert find(logs, hosts) == []


def test_ten_runs_are_the_fewest_that_can_be_marked() -> None:
    def halves(runs: int) -> list[float]:
        return [0.0 + 1e-3 * n for n in range(runs // 2)] + [5.0 + 1e-3 * n for n in range(runs - runs // 2)]

    assert find(halves(MIN_RUNS - 1)) == []
    assert [mark.at for mark in find(halves(MIN_RUNS))] == [5]
    assert find([]) == []


def test_the_same_series_has_the_same_marks() -> None:
    logs = stepped(np.random.default_rng(10), 12, 8)
    assert find(logs) == find(logs)


def test_every_time_needs_a_host() -> None:
    with pytest.raises(ValueError, match="3 times and 2 hosts: each run needs one of both"):
        changes.find([1.0, 2.0, 3.0], ["a", "b"])
