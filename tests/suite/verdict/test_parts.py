"""Parts of a step that cost nothing, or grew by nothing, are rarely named from few sessions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from suite.verdict.diagnose import NAMING_ERROR, Point, Rounds, growth, waterfall
from tests.support.rates import exceeds

ROUNDS, RUNS = 10, 300
HALF_SD = 1.15 / np.sqrt(ROUNDS)  # of the faster half's mean, where a round has 1; of all rounds 1 / sqrt(ROUNDS)
USUAL_S: dict[Point, float] = {
    "one": 2.0,
    "one_resident": 2.0,
    "part": 1.0,
    "plain_alone": 1.0,
    "plain": 1.0,
    "unsynced": 1.0,
    "resident": 1.0,
    "step": 1.0,
}
# SDs of the windows of each variant, % of its time, as different as those of real ones.
SDS: dict[Point, float] = {
    "one": 1.0,
    "one_resident": 0.5,
    "part": 0.2,
    "plain_alone": 1.0,
    "plain": 2.0,
    "unsynced": 1.0,
    "resident": 3.0,
    "step": 2.0,
}
ON_TWO_RANKS: tuple[Point, ...] = ("plain", "unsynced", "resident", "step")
BETWEEN_RANKS = 0.3  # % of a step: the SD of each rank beside what both have in common, the same in every variant
# By how much sessions of each variant scatter more than their windows explain: SDs over that of the faster half.
NOISES: dict[str, dict[Point, float]] = {
    "rounds alone": {},
    "sessions as much as rounds": dict.fromkeys(SDS, 1.0),
    "sessions three times as much": dict.fromkeys(SDS, 3.0),
    "sessions five times as much": dict.fromkeys(SDS, 5.0),
    "one variant three times as much": {"resident": 3.0},
    "one variant eight times as much": {"resident": 8.0},
}
MISSED = ("one variant three times as much", "one variant eight times as much")  # by waterfalls of three sessions


def session(taus: Mapping[Point, float], rng: np.random.Generator) -> Rounds:
    """Return the windows of one side's session, which lose nothing but what differs between two ranks.

    Args:
        taus: one of `NOISES`; what it leaves out has sessions that differ no more than their windows explain.
        rng: draws the noise.
    """
    windows: dict[Point, list[list[float]]] = {}
    for point, sd in SDS.items():
        ranks = 2 if point in ON_TWO_RANKS else 1
        noise = rng.standard_normal((ROUNDS, 1)) + taus.get(point, 0.0) * HALF_SD * rng.standard_normal()
        of_ranks = BETWEEN_RANKS * (ranks - 1) * rng.standard_normal((ROUNDS, ranks))
        windows[point] = (USUAL_S[point] * (1 + (sd * noise + of_ranks) / 100)).tolist()
    return windows


def grown_by_mistake(taus: Mapping[Point, float], sessions: int) -> int:
    """Return in how many comparisons of two equal sides a part is said to have grown."""
    rng, named = np.random.default_rng(6), 0
    for _ in range(RUNS):
        sides = [[session(taus, rng) for _ in range(sessions)] for _ in range(2)]
        grown = growth(*sides, mode="strong", world_size=2)
        named += grown is not None and grown.named is not None
    return named


def named_by_mistake(taus: Mapping[Point, float], sessions: int) -> int:
    """Return in how many waterfalls a part is named that costs nothing; two ranks do differ, which is imbalance."""
    rng, named = np.random.default_rng(7), 0
    for _ in range(RUNS):
        fall = waterfall([session(taus, rng) for _ in range(sessions)], mode="strong", world_size=2)
        named += fall is not None and fall.named is not None and fall.named.causes != ("imbalance",)
    return named


@pytest.mark.nightly
@pytest.mark.parametrize("name", NOISES)
def test_parts_that_cost_nothing_are_rarely_named(name: str) -> None:
    assert not exceeds(grown_by_mistake(NOISES[name], 3), RUNS, NAMING_ERROR)
    sessions = 4 if name in MISSED else 3
    assert not exceeds(named_by_mistake(NOISES[name], sessions), RUNS, NAMING_ERROR)
