"""Windows of simulated sessions, as the verdict takes them, and error rates that are compared with their bounds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import stats

from suite.verdict import Middle, Windows


def exceeds(count: int, trials: int, bound: float) -> bool:
    """Whether so many events contradict a rate of at most `bound` (exact binomial, one-sided, 0.1 %)."""
    return bool(stats.binomtest(count, trials, bound, alternative="greater").pvalue < 0.001)


def t(df: float, alpha: float) -> float:
    """Return the quantile of Student's t that a value exceeds with probability `alpha`."""
    return float(stats.t.ppf(1 - alpha, df))


def windows_of(sides: npt.NDArray[np.float64]) -> list[Windows]:
    """Return sessions, from an array of shape (2, sessions, windows): candidate and base, ln(seconds a step)."""
    return [Windows(own, other) for own, other in zip(*sides.tolist(), strict=True)]


def middles_of(sides: npt.NDArray[np.float64]) -> list[Middle]:
    """Return what each session shows of the same."""
    return [Middle.of(windows) for windows in windows_of(sides)]
