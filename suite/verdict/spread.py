"""Estimate a cell's slowdown and its standard error, from its sessions, the run's other cells and a calibration.

Session s shows delta + b_s + e_s: b_s, of variance tau^2, is what its fresh processes share (placement, memory layout),
and e_s, of variance w_s^2, is what the machine's noise leaves in the faster half of its windows. A session counts as
one number.

A few sessions show that variance badly, so it is also predicted: by the other cells of the same world size whose
windows scatter alike and whose sessions took place at the same time, and by a calibration (tau^2 was learned, w_s^2
comes from today's rounds). The larger prediction is pooled with the cell's own evidence by degrees of freedom (Smyth
2004, the moderated t), and the result is never below what the cell's own sessions show. docs/verdict.md derives it and
has its error rates, also where the calibration is wrong and where a cell is unlike the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from suite.verdict.metrics import faster_half, faster_half_variance, variance

# Degrees of freedom of "today's tau^2 over the calibrated one": their 97.5 % quantile is a factor of 2.9 in tau, so the
# bound expects a machine up to three times more scattered than when it was calibrated.
KAPPA = 4.0
# The most degrees of freedom of a prediction, however many sessions are behind it: the same for the whole variance of a
# session, because a cell may scatter more than the others, and today more than then. Chosen among 3, 4, 5, 6 and 8 by
# simulation (docs/verdict.md).
MOST_DF = 4.0
FEWEST = 3  # sessions from which parts of a step share their spread; from two, an error of 5 % becomes 8


@dataclass(frozen=True)
class Learned:
    """A calibration's estimate of the variance between sessions, tau^2, and that estimate's variance."""

    tau2: float
    tau2_var: float


@dataclass(frozen=True)
class Estimate:
    """A mean over sessions, its standard error, and the degrees of freedom of that.

    Attributes:
        variance: of one session, behind the standard error.
    """

    mean: float
    error: float
    df: float
    sessions: int
    variance: float


@dataclass(frozen=True)
class Windows:
    """ln(seconds a step) of the windows of two arms in a session: as many of each, and timed next to each other.

    Attributes:
        own: of the arm that is judged, at least one.
        other: of the arm it is compared with.
    """

    own: Sequence[float]
    other: Sequence[float]

    @property
    def log_ratios(self) -> list[float]:
        """ln(t_own / t_other) of every pair."""
        return [a - b for a, b in zip(self.own, self.other, strict=True)]


@dataclass(frozen=True)
class Middle:
    """One session as an observation.

    Attributes:
        value: what it shows of the difference.
        variance, df: of `value`, estimated from its windows, and its degrees of freedom; None from a single window.
        average: the difference over all windows, slow ones included; None where it is `value`.
    """

    value: float
    variance: float | None = None
    df: int | None = None
    average: float | None = None

    @classmethod
    def of(cls, windows: Windows) -> Middle:
        """Return ln(t_own / t_other) of a session, by the faster half of either arm's windows."""
        value = faster_half(windows.own) - faster_half(windows.other)
        if len(windows.own) == 1:
            return cls(value)
        (own, df), (other, _) = (faster_half_variance(each) for each in (windows.own, windows.other))
        return cls(value, own + other, 2 * df, statistics.fmean(windows.log_ratios))


def estimate(
    sessions: Sequence[Middle], learned: Learned | None = None, peers: Sequence[Sequence[float]] = ()
) -> Estimate:
    """Return the estimate from two sessions or more.

    Args:
        sessions: the observations.
        learned: of this machine; it does not count where a session has a single round.
        peers: the values of as many sessions, or fewer, of each other cell whose sessions scatter alike.
    """
    values = [session.value for session in sessions]
    n, own = len(values), variance(values)
    errors = [(s.variance, s.df) for s in sessions if s.variance is not None and s.df is not None]
    predictions = [_from_peers(peers)]
    if learned is not None and len(errors) == n:
        predictions.append(_from_calibration(errors, learned))
    predicted, predicted_df = max(predictions)
    df = predicted_df + n - 1
    pooled = max((predicted_df * predicted + (n - 1) * own) / df, own)
    return Estimate(statistics.fmean(values), math.sqrt(pooled / n), df, n, pooled)


def of_parts(parts: Sequence[Sequence[Middle]]) -> list[Estimate] | None:
    """Return an estimate of each part of a step, all from the same sessions.

    Parts differ in their noise, so what they share is a ratio: how much more sessions differ than rounds explain. The
    other parts' sessions, scaled by the rounds of both, are peers.

    Args:
        parts: of each, a value and its variance for every session.

    Returns:
        None from fewer than `FEWEST` sessions, or where rounds do not show the noise of a part.
    """
    within = [statistics.fmean(s.variance or 0.0 for s in part) for part in parts]
    if any(len(part) < FEWEST for part in parts) or not all(within):
        return None
    estimates = []
    for own, own_within in zip(parts, within, strict=True):
        others = [(part, math.sqrt(own_within / w)) for part, w in zip(parts, within, strict=True) if part is not own]
        peers = [[scale * session.value for session in part] for part, scale in others]
        estimates.append(estimate(own, Learned(0.0, 0.0), peers))
    return estimates


def _from_peers(peers: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return a session's variance as other cells show it, pooled, and its degrees of freedom; (0, 0) without any."""
    shown = [(len(values) - 1, variance(values)) for values in peers if len(values) > 1]
    df = sum(df for df, _ in shown)
    return (math.fsum(df * variance for df, variance in shown) / df, min(MOST_DF, df)) if df else (0.0, 0.0)


def _from_calibration(errors: Sequence[tuple[float, int]], learned: Learned) -> tuple[float, float]:
    """Return a session's variance as predicted by calibration and these sessions' rounds, and its degrees of freedom.

    Degrees of freedom of the sum of the two by Satterthwaite (1946): each part's variance is 2 part^2 / df.
    """
    within = statistics.fmean(variance for variance, _ in errors)
    within_var = 2 * math.fsum(variance**2 / df for variance, df in errors) / len(errors) ** 2
    predicted = learned.tau2 + within
    uncertainty = learned.tau2_var + 2 * learned.tau2**2 / KAPPA + within_var
    return predicted, min(MOST_DF, 2 * predicted**2 / uncertainty) if uncertainty > 0 else 1.0
