"""How often a series that never changed has a mark, and how soon a step has one: `python -m docs.evidence.marks`.

Seeded; ten minutes of one core. docs/history.md has its tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from suite.records import changes

NOISE = 0.02
BEFORE = 30
AROUND = 20
NEAR = 2

Draw = Callable[[np.random.Generator, int], np.ndarray]


def correlated(rng: np.random.Generator, runs: int, rho: float) -> np.ndarray:
    """Return runs of which each resembles the one before it, an autoregressive series of order one."""
    logs = NOISE * rng.normal(size=runs)
    for run in range(1, runs):
        logs[run] = rho * logs[run - 1] + np.sqrt(1 - rho**2) * logs[run]
    return logs


NOISES: dict[str, Draw] = {
    "normal": lambda rng, runs: NOISE * rng.normal(size=runs),
    "Student's t, 2 df": lambda rng, runs: NOISE * rng.standard_t(2, size=runs),
    "exponential": lambda rng, runs: NOISE * rng.exponential(size=runs),
    "one run in ten 30 % slower": lambda rng, runs: NOISE * rng.normal(size=runs) + 0.26 * (rng.random(runs) < 0.1),
    "normal, autocorrelation .3": lambda rng, runs: correlated(rng, runs, 0.3),
    "normal, autocorrelation .6": lambda rng, runs: correlated(rng, runs, 0.6),
}


def marked(rng: np.random.Generator, draw: Draw, runs: int, series: int) -> float:
    """The share of series without any change that have a mark."""
    return sum(bool(changes.find(draw(rng, runs).tolist(), ["a"] * runs)) for _ in range(series)) / series


def found(rng: np.random.Generator, step: float, after: int, series: int) -> tuple[float, float]:
    """The shares of series with a step that have a mark near it, and any other."""
    near = other = 0
    for _ in range(series):
        logs = NOISE * rng.normal(size=BEFORE + after)
        logs[BEFORE:] += np.log1p(step)
        places = [change.at for change in changes.find(logs.tolist(), ["a"] * len(logs))]
        near += any(abs(place - BEFORE) <= NEAR for place in places)
        other += any(abs(place - BEFORE) > NEAR for place in places)
    return near / series, other / series


def repaired(rng: np.random.Generator, step: float, lasted: int, series: int) -> float:
    """The share of series with a slowdown that lasted so many runs that have a mark near either end of it."""
    both = 0
    for _ in range(series):
        logs = NOISE * rng.normal(size=2 * AROUND + lasted)
        logs[AROUND : AROUND + lasted] += np.log1p(step)
        places = [change.at for change in changes.find(logs.tolist(), ["a"] * len(logs))]
        both += all(any(abs(place - end) <= NEAR for place in places) for end in (AROUND, AROUND + lasted))
    return both / series


def unchanged(series: int) -> None:
    """Print how often series that never changed have a mark."""
    rng, lengths = np.random.default_rng(0), (10, 20, 50, 200)
    print("| noise, nothing changed |", " | ".join(f"{runs} runs" for runs in lengths), "|")
    for name, draw in NOISES.items():
        print(f"| {name} |", " | ".join(f"{marked(rng, draw, runs, series):.3f}" for runs in lengths), "|", flush=True)


def steps(series: int) -> None:
    """Print how soon a step has a mark."""
    rng, afters = np.random.default_rng(0), (3, 4, 5, 6, 8, 10, 30)
    print(f"| step after {BEFORE} runs |", " | ".join(f"{after} later" for after in afters), "|")
    for step in (0.03, 0.05, 0.10):
        shares = [found(rng, step, after, series) for after in afters]
        print(f"| {step:.0%} |", " | ".join(f"{near:.2f} ({other:.3f})" for near, other in shares), "|", flush=True)


def slowdowns(series: int) -> None:
    """Print how often a slowdown that was repaired has a mark at both ends."""
    rng, lasting = np.random.default_rng(0), (4, 6, 10, 20)
    print(f"| {AROUND} runs, slower, {AROUND} runs |", " | ".join(f"for {runs}" for runs in lasting), "|")
    for step in (0.05, 0.10):
        print(f"| {step:.0%} |", " | ".join(f"{repaired(rng, step, runs, series):.2f}" for runs in lasting), "|")


TABLES = {"unchanged": unchanged, "steps": steps, "repaired": slowdowns}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=500, help="simulated for each figure (default: 500)")
    parser.add_argument("--table", choices=TABLES, help="this one alone")
    asked = parser.parse_args()
    for name, table in TABLES.items():
        if asked.table in (None, name):
            table(asked.series)


if __name__ == "__main__":
    main()
