"""How error is spent, and what is too little for a FAIL; test_verdict_simulation.py has the error rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import pytest

from suite import verdict
from suite.verdict import Middle, Outcome, Terms
from tests.support.family import normal
from tests.support.rates import middles_of


def paired(deltas: Sequence[float], terms: Terms) -> verdict.Verdict:
    """`verdict.paired` on sessions of one window each."""
    return verdict.paired([Middle(delta) for delta in deltas], terms)


@pytest.mark.parametrize("deltas", [(-0.2, -0.21, -0.19, -0.2), (0.0100, 0.0101, 0.0099, 0.01)])
def test_a_faster_candidate_or_a_small_certain_slowdown_passes(deltas: Sequence[float]) -> None:
    """FAIL also needs an estimate of half the margin: 1 % slower with certainty is no alarm at 5 %."""
    assert paired(deltas, Terms(0.05, 1, 4, 10.0)).outcome is Outcome.PASS


class TestSurplus:
    """Whose parts are worth timing: what looks slower than its rounds explain."""

    def test_equal_cells_rarely_look_slower(self) -> None:
        """2,000 cells of rounds of 7 % and sessions of 1 %: a waterfall for nothing costs seconds, not a verdict."""
        windows = normal(0.07, 0.01)(numpy.random.default_rng(1), (2000, 1, 2, 16))[:, :, 0]
        assert sum(verdict.surplus(middles_of(windows[:, cell]), 0.05) > 0 for cell in range(2000)) < 40
