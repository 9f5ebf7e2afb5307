"""Numbers in, verdict out. Pure: no torch, no pytest, no clock.

A cell's session gives one number, delta = ln(t_candidate / t_base), the mean over its blocks; slower is positive.
Sessions are fresh processes and are taken as independent draws around the true delta, whose spread is estimated from
them alone, so the t distribution holds at any noise. A run looks at its cells after every session from the third on,
and stops early in either direction. The error probability is split over the looks (`spending`) and, for FAIL, over the
cells of the run, so that by the union bound

    P(any FAIL | no cell is slower) <= ALPHA_FAIL   and   P(PASS | delta >= ln(1 + tolerance)) <= ALPHA_PASS for each
    cell.

Not here yet: spread learned by calibration, confirmation, floors, drift, accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from suite.metrics import Interval, from_logs, mean_and_standard_error, t_quantile

ALPHA_FAIL = 0.01  # of a whole run, over all its cells
ALPHA_PASS = 0.05  # of each cell
FIRST_LOOK = 3  # sessions; with two the t distribution's tail is so heavy that nothing could be decided
MIN_BASELINE_RUNS = 3  # how runs differ from one another is estimated from them, and two give no usable estimate


class Outcome(StrEnum):
    """What a cell comes to."""

    PASS = "PASS"  # noqa: S105 - not a password
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO BASELINE"
    ERROR = "ERROR"


@dataclass(frozen=True)
class Verdict:
    """An outcome, one sentence that says why, and the slowdown t_candidate / t_base where there is one."""

    outcome: Outcome
    reason: str
    ratio: Interval | None = None


def spending(sessions: int, planned: int) -> float:
    """The share of the error probability that the look after `sessions` may use; over all looks it adds up to 1.

    The cumulative share grows with the cube of the sessions: early looks are nearly free and decide only what is
    obvious, and the last one keeps most of the power.
    """
    if not FIRST_LOOK <= sessions <= max(planned, FIRST_LOOK):
        return 0.0
    before = 0 if sessions == FIRST_LOOK else sessions - 1
    return (sessions**3 - before**3) / max(planned, FIRST_LOOK) ** 3


def paired(deltas: Sequence[float], tolerance: float, cells: int, planned: int, session_s: float) -> Verdict:
    """Judge a cell whose base was measured in the same sessions.

    Args:
        deltas: ln(t_candidate / t_base) of each session so far.
        tolerance: m, the slowdown that must be found.
        cells: how many cells of the run are judged.
        planned: sessions that the budget allows.
        session_s: wall seconds of one session, for the advice when nothing is clear.
    """
    if len(deltas) < FIRST_LOOK:
        return Verdict(
            Outcome.INCONCLUSIVE,
            f"{len(deltas)} session(s) measured, {FIRST_LOOK} are needed for a decision: raise the budget to about "
            f"{math.ceil((FIRST_LOOK + 1) * session_s)} s",
            from_logs(deltas),
        )
    share = spending(len(deltas), planned)
    mean, error = mean_and_standard_error(deltas)
    df = len(deltas) - 1
    return _decide(
        mean,
        low=mean - _quantile(df, 1 - ALPHA_FAIL / cells * share) * error,
        high=mean + _quantile(df, 1 - ALPHA_PASS * share) * error,
        tolerance=tolerance,
        ratio=from_logs(deltas),
        advice=_advice(deltas, tolerance, cells, planned, session_s),
    )


def stored(log_t: float, baseline_log_t: Sequence[float], tolerance: float, cells: int) -> Verdict:
    """Judge a cell against accepted runs of other times: the unit is the run, and they predict a new one.

    Args:
        log_t: ln of the candidate run's seconds a step.
        baseline_log_t: the same of every accepted run.
        tolerance, cells: as in `paired`.
    """
    runs = len(baseline_log_t)
    delta = log_t - math.fsum(baseline_log_t) / runs
    if runs < MIN_BASELINE_RUNS:
        return Verdict(
            Outcome.INCONCLUSIVE,
            f"{_percent(delta)} than the {runs} accepted run(s), but how runs differ on this machine is not known "
            f"from fewer than {MIN_BASELINE_RUNS}: accept more runs, or measure a base in the same run "
            "(--scaling-against)",
            Interval(math.exp(delta)),
        )
    _, error = mean_and_standard_error(baseline_log_t)
    predicted = error * math.sqrt(runs + 1)  # the spread of one run, and the error of the mean of the accepted ones
    half = t_quantile(runs - 1, 0.975) * predicted
    return _decide(
        delta,
        low=delta - _quantile(runs - 1, 1 - ALPHA_FAIL / cells) * predicted,
        high=delta + _quantile(runs - 1, 1 - ALPHA_PASS) * predicted,
        tolerance=tolerance,
        ratio=Interval(math.exp(delta), math.exp(delta - half), math.exp(delta + half)),
        advice="accept more runs, or measure a base in the same run (--scaling-against)",
    )


def _decide(mean: float, low: float, high: float, tolerance: float, ratio: Interval | None, advice: str) -> Verdict:
    margin = math.log1p(tolerance)
    if low > 0 and mean >= margin / 2:
        return Verdict(
            Outcome.FAIL, f"{_percent(mean)} than the base, surely not equal (at least {_percent(low)})", ratio
        )
    if high < margin:
        return Verdict(Outcome.PASS, f"{_percent(mean)} than the base, at most {_percent(high)}", ratio)
    return Verdict(
        Outcome.INCONCLUSIVE,
        f"{_percent(mean)} than the base, and anything from {_percent(low)} to {_percent(high)} is possible: {advice}",
        ratio,
    )


def _advice(deltas: Sequence[float], tolerance: float, cells: int, planned: int, session_s: float) -> str:
    mean, error = mean_and_standard_error(deltas)
    sd, margin = error * math.sqrt(len(deltas)), math.log1p(tolerance)
    towards_fail = mean > margin / 2
    distance = mean if towards_fail else margin - mean
    alpha = ALPHA_FAIL / cells if towards_fail else ALPHA_PASS
    # The last look's share of a long plan is about its whole in a short one; half is a fair stand-in for the forecast.
    needed = next(
        (n for n in range(len(deltas) + 1, 1000) if _quantile(n - 1, 1 - alpha / 2) * sd / math.sqrt(n) < distance),
        None,
    )
    upper = max(mean, 0) + _quantile(len(deltas) - 1, 1 - ALPHA_PASS * spending(planned, planned)) * error
    reachable = math.expm1(min(upper, math.log(10)))
    minutes = (
        f"about {(needed - len(deltas)) * session_s / 60:.1f} more minutes" if needed else "more time than is sensible"
    )
    return f"it needs {minutes}, a quieter machine, or a tolerance of {max(reachable, tolerance):.0%}"


def _quantile(df: int, probability: float) -> float:
    return math.inf if probability >= 1 else t_quantile(df, probability)


def _percent(delta: float) -> str:
    if abs(delta) > math.log(10):
        return f"over ten times {'slower' if delta > 0 else 'faster'}"
    return f"{abs(math.expm1(delta)):.1%} {'slower' if delta >= 0 else 'faster'}"
