"""From an estimate and its two bounds to an outcome: the one rule behind every comparison of times."""

from __future__ import annotations

import math

from suite.verdict.metrics import Interval, t_quantile
from suite.verdict.outcome import Outcome, Verdict, percent


def decide(mean: float, low: float, high: float, tolerance: float, ratio: Interval | None, advice: str) -> Verdict:
    """FAIL where it is surely slower, by half the margin at least; PASS where it is surely not slower by the margin.

    Args:
        mean: the estimate of ln(t_candidate / t_base).
        low, high: its bounds, each at the error probability that this decision may spend.
        tolerance: m; the margin is ln(1 + m).
        ratio: what is shown beside the outcome.
        advice: what it would take to decide.
    """
    margin = math.log1p(tolerance)
    if low > 0 and mean >= margin / 2:
        return Verdict(
            Outcome.FAIL, f"{percent(mean)} than the base, surely not equal (at least {percent(low)})", ratio
        )
    if high < margin:
        return Verdict(Outcome.PASS, f"{percent(mean)} than the base, at most {percent(high)}", ratio)
    return Verdict(
        Outcome.INCONCLUSIVE,
        f"{percent(mean)} than the base, and anything from {percent(low)} to {percent(high)} is possible: {advice}",
        ratio,
    )


def quantile(df: float, probability: float) -> float:
    """Student's t quantile; infinite where no error may be spent."""
    return math.inf if probability >= 1 else t_quantile(df, probability)
