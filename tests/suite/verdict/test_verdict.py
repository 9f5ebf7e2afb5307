"""The decision's outcomes, and its error rates by seeded simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy
import pytest

from suite import verdict
from suite.verdict import ALPHA_FAIL, ALPHA_PASS, Outcome
from tests.support.rates import exceeds

MARGIN = math.log1p(0.05)


def paired(deltas: Sequence[float], *rest: float) -> verdict.Verdict:
    """`verdict.paired` on sessions of one round each."""
    return verdict.paired([[delta] for delta in deltas], *rest)


def one_run(rng: numpy.random.Generator, delta: float, sd: float, cells: int, planned: int) -> list[Outcome]:
    """The outcomes of all cells of one simulated run that looks after every session and stops when it is decided."""
    outcomes = []
    for _ in range(cells):
        deltas: list[float] = []
        outcome = Outcome.INCONCLUSIVE
        while len(deltas) < planned and outcome is Outcome.INCONCLUSIVE:
            deltas.append(rng.normal(delta, sd))
            outcome = paired(deltas, 0.05, cells, planned, 10.0).outcome
        outcomes.append(outcome)
    return outcomes


@pytest.mark.parametrize("planned", [3, 5, 12])
def test_the_error_is_spent_once_over_all_looks(planned: int) -> None:
    assert sum(verdict.spending(n, planned) for n in range(planned + 1)) == pytest.approx(1)


@pytest.mark.parametrize(("sd", "cells", "planned"), [(0.005, 1, 5), (0.02, 1, 12), (0.02, 12, 6), (0.08, 4, 5)])
def test_runs_without_a_slowdown_rarely_fail(sd: float, cells: int, planned: int) -> None:
    """At most ALPHA_FAIL of whole runs have any FAIL, at any noise: the count over 1,000 runs fits that bound."""
    rng = numpy.random.default_rng(7)
    alarms = sum(Outcome.FAIL in one_run(rng, 0.0, sd, cells, planned) for _ in range(1000))
    assert not exceeds(alarms, 1000, ALPHA_FAIL)


@pytest.mark.parametrize(("sd", "planned"), [(0.005, 5), (0.02, 5), (0.03, 12), (0.08, 5)])
def test_a_slowdown_of_the_tolerance_rarely_passes(sd: float, planned: int) -> None:
    rng = numpy.random.default_rng(8)
    passes = sum(one_run(rng, MARGIN, sd, 1, planned) == [Outcome.PASS] for _ in range(1000))
    assert not exceeds(passes, 1000, ALPHA_PASS)


@pytest.mark.parametrize(("delta", "sd", "outcome"), [(math.log(1.2), 0.02, "FAIL"), (0.0, 0.01, "PASS")])
def test_clear_cases_are_decided(delta: float, sd: float, outcome: str) -> None:
    rng = numpy.random.default_rng(9)
    assert sum(one_run(rng, delta, sd, 1, 6) == [outcome] for _ in range(200)) >= 195


@pytest.mark.parametrize("deltas", [(-0.2, -0.21, -0.19, -0.2), (0.0100, 0.0101, 0.0099, 0.01)])
def test_a_faster_candidate_or_a_small_certain_slowdown_passes(deltas: Sequence[float]) -> None:
    """FAIL also needs an estimate of half the margin: 1 % slower with certainty is no alarm at 5 %."""
    assert paired(deltas, 0.05, 1, 4, 10.0).outcome is Outcome.PASS


class TestSurplus:
    """Whose parts are worth timing: what looks slower than its rounds explain."""

    ROUNDS = [0.0, 0.01, 0.02, 0.03] * 4

    def slower(self, by: float, sessions: int = 1) -> list[list[float]]:
        return [[by - 0.015 + each for each in self.ROUNDS] for _ in range(sessions)]

    def test_a_clear_slowdown_looks_slower_after_one_session(self) -> None:
        assert verdict.surplus(self.slower(0.1), 0.05) == pytest.approx(0.1)

    def test_less_than_half_the_tolerance_or_than_the_rounds_explain_does_not(self) -> None:
        assert verdict.surplus(self.slower(0.02, sessions=9), 0.05) == 0.0
        assert verdict.surplus([[20 * (each - 0.015) + 0.1 for each in self.ROUNDS]], 0.05) == 0.0
        assert verdict.surplus([[0.5]], 0.05) == verdict.surplus([], 0.05) == 0.0, "noise is not known"

    def test_equal_cells_rarely_look_slower(self) -> None:
        """2,000 cells of rounds of 7 % and sessions of 1 %: a waterfall for nothing costs seconds, not a verdict."""
        rng = numpy.random.default_rng(1)
        rounds = 0.07 * rng.standard_normal((2000, 2, 16)) + 0.01 * rng.standard_normal((2000, 2, 1))
        assert sum(verdict.surplus(sessions, 0.05) > 0 for sessions in rounds.tolist()) < 40
