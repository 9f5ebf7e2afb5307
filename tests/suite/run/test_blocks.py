"""The order of arms: balanced, neighbours kept, drawn for every block; and how many blocks a session has."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suite.run import blocks
from suite.run.blocks import Costs, block
from suite.run.timer import MORE_SHARE
from suite.verdict import ALPHA_FAIL

UNITS = st.lists(st.integers(1, 3), min_size=1, max_size=6).map(
    lambda sizes: [tuple(f"{number}.{member}" for member in range(size)) for number, size in enumerate(sizes)]
)


@given(UNITS, st.integers())
def test_every_arm_is_timed_twice_and_mirrored_so_that_a_steady_drift_cancels(
    units: list[tuple[str, ...]], seed: int
) -> None:
    order = block(units, random.Random(seed))
    assert order == order[::-1]
    assert sorted(order) == sorted(2 * [arm for unit in units for arm in unit])


@given(UNITS, st.integers())
def test_compared_arms_are_neighbours(units: list[tuple[str, ...]], seed: int) -> None:
    order = block(units, random.Random(seed))
    for unit in units:
        places = sorted(order[: len(order) // 2].index(arm) for arm in unit)
        assert places == list(range(places[0], places[0] + len(unit)))


def test_both_starting_orders_occur() -> None:
    rng = random.Random(0)
    assert {block([("a", "b")], rng)[0] for _ in range(20)} == {"a", "b"}


class TestCount:
    """How much of a session is timing."""

    @staticmethod
    def half_width(
        number: int, start_s: float, round_s: float, budget_s: float, df: float = 0.0, ended: int = 0
    ) -> float:
        """In units of the SD between sessions, of a t bound after all sessions that the budget allows."""
        sessions = ended + budget_s // (start_s + 2 * number * round_s)
        variance = 1 + blocks.ROUND_TO_SESSION**2 / (2 * number)
        return float(stats.t.isf(ALPHA_FAIL, sessions - 1 + df)) * math.sqrt(variance / sessions)

    @pytest.mark.parametrize(("df", "ended"), [(0.0, 0), (0.0, 1), (4.0, 0)])
    @pytest.mark.parametrize(
        ("start_s", "round_s", "budget_s"),
        [(2.2, 0.27, 25.0), (2.2, 0.27, 60.0), (5.0, 0.5, 180.0), (17.0, 2.0, 600.0)],
    )
    def test_no_other_number_makes_the_interval_narrower(
        self, start_s: float, round_s: float, budget_s: float, df: float, ended: int
    ) -> None:
        chosen = blocks.count(Costs(start_s, round_s), budget_s, 1, df, ended)
        widths = {number: self.half_width(number, start_s, round_s, budget_s, df, ended) for number in range(2, 31)}
        assert widths[chosen] == pytest.approx(min(widths.values()))

    @pytest.mark.parametrize(("start_s", "round_s"), [(4.0, 0.24), (9.0, 2.2), (30.0, 8.0)])
    def test_with_many_sessions_it_is_the_number_that_decides_at_the_least_cost(
        self, start_s: float, round_s: float
    ) -> None:
        """Cochran (1977): the cost of a session times its variance."""
        best = blocks.ROUND_TO_SESSION * math.sqrt(start_s / round_s)
        assert 2 * blocks.count(Costs(start_s, round_s), 1e6, 4, 0.0) == pytest.approx(best, abs=1.0)

    def test_a_short_budget_has_more_sessions_of_fewer_blocks(self) -> None:
        """Four sessions of eleven rounds have a bound a fifth wider than six of six."""
        short, usual = (blocks.count(Costs(2.2, 0.27), budget_s, 4, 0.0) for budget_s in (24.0, 600.0))
        assert (short, usual) == (3, 7)
        assert self.half_width(short, 2.2, 0.27, 24.0) < 0.9 * self.half_width(usual, 2.2, 0.27, 24.0)

    @pytest.mark.parametrize(("sessions", "budget_s"), [(4, 55.0), (5, 70.0)])
    def test_as_many_sessions_as_a_decision_takes_fit_into_the_budget(self, sessions: int, budget_s: float) -> None:
        """With as many windows as may be timed again."""

        def all_s(number: int) -> float:
            return sessions * (10.0 + number * (1 + MORE_SHARE))

        chosen = blocks.count(Costs(10.0, 0.5), budget_s, sessions, 0.0)
        assert all_s(chosen) <= budget_s < all_s(chosen + 1)

    @pytest.mark.parametrize(("budget_s", "number"), [(0.0, blocks.LEAST), (1e9, blocks.MOST)])
    def test_a_session_has_several_rounds_and_an_end(self, budget_s: float, number: int) -> None:
        assert blocks.count(Costs(600.0, 0.24), budget_s, 4, 0.0) == number
