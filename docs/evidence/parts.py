"""Intervals of a waterfall's parts from few sessions: how wide, and how often a part is named that costs nothing.

    python -m docs.evidence.parts

prints both tables of docs/diagnosis.md. Nothing is measured: the first table is simulated, and the second draws
sessions from `recording.json`, sixty sessions of two equal groups of workers. The difference of two variants scatters
there as the difference between the two groups does, and by how much a part grew as the difference of two of these.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from docs.evidence.recording import RECORDING, load
from suite.verdict.diagnose import Point, Rounds, growth, waterfall
from suite.verdict.metrics import Interval, from_values, t_quantile
from suite.verdict.spread import Middle, Windows, of_parts

ROUNDS, RUNS = 10, 2000
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


def grown_by_mistake(taus: Mapping[Point, float], sessions: int, runs: int = RUNS) -> int:
    """Return in how many comparisons of two equal sides a part is said to have grown."""
    rng, named = np.random.default_rng(6), 0
    for _ in range(runs):
        sides = [[session(taus, rng) for _ in range(sessions)] for _ in range(2)]
        grown = growth(*sides, mode="strong", world_size=2)
        named += grown is not None and grown.named is not None
    return named


def named_by_mistake(taus: Mapping[Point, float], sessions: int, runs: int = RUNS) -> int:
    """Return in how many waterfalls a part is named that costs nothing; two ranks do differ, which is imbalance."""
    rng, named = np.random.default_rng(7), 0
    for _ in range(runs):
        fall = waterfall([session(taus, rng) for _ in range(sessions)], mode="strong", world_size=2)
        named += fall is not None and fall.named is not None and fall.named.causes != ("imbalance",)
    return named


def intervals(parts: Sequence[Sequence[Middle]]) -> list[Interval]:
    """Return the interval of every part from each of its sessions, as `suite.verdict.diagnose` makes them."""
    shared = of_parts(parts)
    if shared is None:
        return [from_values([session.value for session in part]) for part in parts]
    halves = [t_quantile(each.df, 0.975) * each.error for each in shared]
    return [Interval(e.mean, e.mean - half, e.mean + half) for e, half in zip(shared, halves, strict=True)]


def half_widths(sessions: int, terms: int, runs: int = 300) -> tuple[float, float]:
    """Return the mean half width of six parts, as shares of the step: by t over sessions, and with shared spread.

    Args:
        sessions: that are drawn.
        terms: 2 for a part, the difference of two variants; 4 for what a part grew by.
        runs: how many are drawn.
    """
    recorded = load(RECORDING)
    step_s = statistics.fmean(value for session in recorded for value in session.base)
    first = [(s.candidate[:ROUNDS], s.base[:ROUNDS]) for s in recorded]
    longer = [Middle.of(Windows(*([value / step_s for value in side] for side in sides))) for sides in first]
    rng, alone, shared = random.Random(7), list[float](), list[float]()
    for _ in range(runs):
        parts = [[_sum(rng.choices(longer, k=terms // 2)) for _ in range(sessions)] for _ in range(6)]
        ends = intervals(parts)
        shared += [end.estimate - end.low for end in ends if end.low is not None]
        plain = (from_values([session.value for session in part]) for part in parts)
        alone += [end.estimate - end.low for end in plain if end.low is not None]
    return statistics.fmean(alone), statistics.fmean(shared)


def _sum(terms: Sequence[Middle]) -> Middle:
    """Return the sum of independent terms, of which either sign is as likely."""
    variances, dfs = ([value or 0 for value in each] for each in zip(*((t.variance, t.df) for t in terms), strict=True))
    return Middle(math.fsum(term.value for term in terms), math.fsum(variances), sum(dfs))


def main() -> None:
    """Print both tables."""
    rules = {"grown": grown_by_mistake, "named": named_by_mistake}
    columns = [(rule, sessions) for rule in rules for sessions in (3, 4)]
    print(f"| noise of the variants | {' | '.join(f'{rule}, {sessions} sessions' for rule, sessions in columns)} |")
    print("|---" * (1 + len(columns)) + "|")
    for name, taus in NOISES.items():
        wrong = (rules[rule](taus, sessions) / RUNS for rule, sessions in columns)
        print(f"| {name} | {' | '.join(f'{share:.1%}' for share in wrong)} |", flush=True)
    print("\n| half width, % of the step | 3 sessions | 4 sessions | 5 sessions |\n|---|---|---|---|")
    for terms, what in ((2, "a part"), (4, "by how much a part grew")):
        widths = [half_widths(n, terms) for n in (3, 4, 5)]
        print(f"| {what} | {' | '.join(f'{before:.1%} → {now:.1%}' for before, now in widths)} |")


if __name__ == "__main__":
    main()
