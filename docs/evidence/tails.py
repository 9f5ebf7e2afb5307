"""How often a slow tail is named where both sides scatter alike, and where a tenth of the windows became slow.

    python -m docs.evidence.tails

prints both tables of docs/evidence/verdict.md. `tests/suite/verdict/test_tail.py` checks every row with fewer runs, and
that the rule as it is written here, in numpy over all runs, is that of `suite.verdict.tail`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from docs.evidence.family import FAMILY, Draw, Floats, Row, Shape, halved, heavy, normal
from suite.verdict.outcome import ALPHA_WARN, WORTH
from suite.verdict.spread import MOST_DF

SESSIONS, ROUNDS, RUNS = (3, 4, 6), 16, 8000


def bursts(share: float, slower: float) -> Draw:
    """Return rounds of 2 % in which a share of the windows of either side is slower: other work on the machine."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        return normal(0.02, 0.01)(rng, shape) + math.log1p(slower) * (rng.random((2, *shape)) < share)

    return draw


def unlucky(processes: float, share: float, slower: float) -> Draw:
    """Return rounds of 2 % in which some processes of either side have slow windows for a whole session."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        hit = (rng.random((2, *shape)) < share) & (rng.random((2, *shape[:3], 1)) < processes)
        return normal(0.02, 0.01)(rng, shape) + math.log1p(slower) * hit

    return draw


# The family of docs/verdict.md as far as it is about rounds and sessions of equal builds, and noises with tails.
NOISES = (
    *(row for row in FAMILY if row.learned is None and not row.slower),
    Row("one cell: heavy tails (t2), rounds and sessions 1 %", heavy(0.01, 0.01), cells=1),
    Row("a tenth of windows 30 % slower on both sides", bursts(0.1, 0.3)),
    Row("one cell: a tenth of windows 30 % slower on both sides", bursts(0.1, 0.3), cells=1),
    Row("one cell: 3 % of windows twice as slow on both sides", bursts(0.03, 1.0), cells=1),
    Row("tails in a third of processes: a fifth of windows 30 % slower", unlucky(1 / 3, 0.2, 0.3)),
    Row("one cell: tails in a third of processes", unlucky(1 / 3, 0.2, 0.3), cells=1),
)


class Mode(NamedTuple):
    """A second mode: so many of the candidate's windows are slower by so much."""

    share: float
    slower: float
    round_sd: float = 0.02


MODES = (Mode(0.1, 0.3), Mode(0.1, 1.0), Mode(0.1, 0.3, 0.07), Mode(0.2, 0.3), Mode(0.05, 1.0))


def warned(windows: Floats, comparisons: int) -> npt.NDArray[np.bool_]:
    """Return for each cell whether `suite.verdict.tail` names a slower tail.

    Args:
        windows: ln(seconds a step) of both sides, shape (2, runs, cells, sessions, rounds).
        comparisons: cells that share the error.
    """
    count, n = windows.shape[-1], windows.shape[-2]
    (kept, adjusted), ordered = halved(windows), np.sort(windows, axis=-1)
    beyond = windows.mean(axis=-1) - kept.mean(axis=-1)
    excess = beyond[0] - beyond[1]
    mean, centre = (each.mean(axis=-1, keepdims=True) for each in (windows, adjusted))
    influences = ordered - mean - count / kept.shape[-1] * (adjusted - centre)
    w2 = (influences**2).sum(axis=-1).sum(axis=0) / (count * (count - 1))
    within, own = w2.mean(axis=-1), excess.var(axis=-1, ddof=1)
    within_df = np.minimum(MOST_DF, within**2 * n**2 * 2 * (count - 1) / (w2**2).sum(axis=-1))
    df = within_df + n - 1
    error = np.sqrt(np.maximum((within_df * within + (n - 1) * own) / df, own) / n)
    shown = excess.mean(axis=-1)
    said: npt.NDArray[np.bool_] = (shown - stdtrit(df, 1 - ALPHA_WARN / comparisons) * error > 0) & (shown >= WORTH)
    return said & ((windows[0] - windows[1]).mean(axis=(-1, -2)) > 0)


def false_warnings(row: Row, runs: int = RUNS) -> list[int]:
    """Return in how many runs of equal builds any cell is said to have a slower tail, for each of `SESSIONS`."""
    windows = row.draw(np.random.default_rng(4), (runs, row.cells, max(SESSIONS), ROUNDS))
    return [int(warned(windows[:, :, :, :n], row.cells).any(axis=1).sum()) for n in SESSIONS]


def named(mode: Mode, sessions: int, cells: int, runs: int = 2000) -> float:
    """Return in which share of runs a second mode in one of the cells is named."""
    rng = np.random.default_rng(5)
    windows = normal(mode.round_sd, 0.01)(rng, (runs, 1, sessions, ROUNDS))
    windows[0] += math.log1p(mode.slower) * (rng.random(windows[0].shape) < mode.share)
    return float(warned(windows, cells).mean())


def main() -> None:
    """Print both tables."""
    print(f"| both sides scatter alike | {' | '.join(f'{n} sessions' for n in SESSIONS)} |\n|---|---|---|---|")
    for row in NOISES:
        print(f"| {row.name} | {' | '.join(f'{wrong / RUNS:.2%}' for wrong in false_warnings(row))} |")
    lengths = (3, 4, 6, 10, 20)
    print(f"\n| second mode of one cell | cells | {' | '.join(f'{n} sessions' for n in lengths)} |")
    print(f"|---|---|{'---|' * len(lengths)}")
    for mode in MODES:
        what = f"{mode.share:.0%} of windows {mode.slower:.0%} slower, rounds {mode.round_sd:.0%}"
        for cells in (1, 12):
            print(f"| {what} | {cells} | {' | '.join(f'{named(mode, n, cells):.2f}' for n in lengths)} |")


if __name__ == "__main__":
    main()
