"""Compare simulated error rates with their bounds."""

from __future__ import annotations

from scipy import stats


def exceeds(count: int, trials: int, bound: float) -> bool:
    """Whether so many events contradict a rate of at most `bound` (exact binomial, one-sided, 0.1 %)."""
    return bool(stats.binomtest(count, trials, bound, alternative="greater").pvalue < 0.001)


def t(df: float, alpha: float) -> float:
    """Return the quantile of Student's t that a value exceeds with probability `alpha`."""
    return float(stats.t.ppf(1 - alpha, df))
