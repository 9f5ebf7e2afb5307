"""The order of arms: balanced, neighbours kept, drawn for every block."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from suite.run.blocks import block

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
