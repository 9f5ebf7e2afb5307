"""Intervals of a waterfall's parts from few sessions: how wide, and how often a part is named that costs nothing.

    python -m docs.evidence.parts

prints both tables of docs/diagnosis.md. Nothing is measured: the first table is simulated, and the second draws
sessions from `recording.json`, sixty sessions of two equal groups of workers. The difference of two variants scatters
there as the difference between the two groups does, and by how much a part grew as the difference of two of these.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from docs.evidence.family import Floats
from docs.evidence.recording import RECORDING, load
from suite.verdict.diagnose import supported
from suite.verdict.metrics import Interval, from_values, t_quantile
from suite.verdict.spread import Middle, of_parts

ROUNDS, RUNS = 10, 2000
SDS = (1.0, 0.2, 3.0, 1.0, 2.0, 0.5, 1.0)  # of the rounds of each part
# By how much sessions of each part scatter more than their rounds explain: SDs over that of a session's middle.
NOISES = {
    "rounds alone": (0.0,) * 7,
    "sessions as much as rounds": (1.0,) * 7,
    "sessions three times as much": (3.0,) * 7,
    "sessions five times as much": (5.0,) * 7,
    "one part three times as much": (0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0),
    "one part eight times as much": (0.0, 0.0, 0.0, 8.0, 0.0, 0.0, 0.0),
}


def intervals(parts: Sequence[Sequence[Sequence[float]]]) -> tuple[list[Interval], list[float]]:
    """Return the interval of every part and its degrees of freedom, as `suite.verdict.diagnose` makes them.

    Args:
        parts: of every part, the rounds of each session.
    """
    middles = [[Middle.of(rounds) for rounds in sessions] for sessions in parts]
    shared = of_parts(middles)
    if shared is None:
        return [from_values([middle.value for middle in part]) for part in middles], [len(p) - 1.0 for p in middles]
    halves = [t_quantile(each.df, 0.975) * each.error for each in shared]
    ends = [Interval(e.mean, e.mean - half, e.mean + half) for e, half in zip(shared, halves, strict=True)]
    return ends, [each.df for each in shared]


def equal_parts(taus: Sequence[float], sessions: int, runs: int) -> Floats:
    """Return rounds of parts that cost nothing, shape (runs, parts, sessions, rounds)."""
    rng, shape = np.random.default_rng(6), (runs, len(taus), sessions)
    between = np.array(taus)[:, None, None] * 1.1 / np.sqrt(ROUNDS) * rng.standard_normal((*shape, 1))
    rounds: Floats = np.array(SDS)[:, None, None] * (rng.standard_normal((*shape, ROUNDS)) + between)
    return rounds


def wrongly_named(taus: Sequence[float], sessions: int, runs: int = RUNS) -> int:
    """Return in how many waterfalls a part is named although none costs anything."""
    return sum(supported(*intervals(parts)) is not None for parts in equal_parts(taus, sessions, runs).tolist())


def half_widths(sessions: int, terms: int, runs: int = 300) -> tuple[float, float]:
    """Return the mean half width of six parts, as shares of the step: by t over sessions, and with shared spread.

    Args:
        sessions: that are drawn.
        terms: 2 for a part, the difference of two variants; 4 for what a part grew by.
        runs: how many are drawn.
    """
    recorded = load(RECORDING)
    step_s = statistics.fmean(value for session in recorded for value in session.base)
    longer = np.array([[a - b for a, b in zip(s.candidate, s.base, strict=True)][:ROUNDS] for s in recorded]) / step_s
    rng, alone, shared = np.random.default_rng(7), [], []
    for _ in range(runs):
        drawn = longer[rng.integers(len(longer), size=(terms // 2, 6, sessions))]
        parts = (drawn[0] - drawn[1] if terms == 4 else drawn[0]).tolist()
        ends = intervals(parts)[0]
        shared += [end.estimate - end.low for end in ends if end.low is not None]
        plain = (from_values([Middle.of(rounds).value for rounds in part]) for part in parts)
        alone += [end.estimate - end.low for end in plain if end.low is not None]
    return statistics.fmean(alone), statistics.fmean(shared)


def main() -> None:
    """Print both tables."""
    print("| noise of seven parts that cost nothing | 3 sessions | 4 sessions |\n|---|---|---|")
    for name, taus in NOISES.items():
        print(f"| {name} | {' | '.join(f'{wrongly_named(taus, n) / RUNS:.1%}' for n in (3, 4))} |")
    print("\n| half width, % of the step | 3 sessions | 4 sessions | 5 sessions |\n|---|---|---|---|")
    for terms, what in ((2, "a part"), (4, "by how much a part grew")):
        widths = [half_widths(n, terms) for n in (3, 4, 5)]
        print(f"| {what} | {' | '.join(f'{before:.1%} → {now:.1%}' for before, now in widths)} |")


if __name__ == "__main__":
    main()
