"""A cell against a base that was measured in the same sessions.

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

from suite.metrics import from_logs, location, mean_and_standard_error
from suite.verdict.decide import decide, quantile
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome, Verdict

FIRST_LOOK = 3  # sessions; with two the t distribution's tail is so heavy that nothing could be decided


def spending(sessions: int, planned: int) -> float:
    """The share of the error probability that the look after `sessions` may use; over all looks it adds up to 1.

    The cumulative share grows with the cube of the sessions: early looks are nearly free and decide only what is
    obvious, and the last one keeps most of the power.
    """
    if not FIRST_LOOK <= sessions <= max(planned, FIRST_LOOK):
        return 0.0
    before = 0 if sessions == FIRST_LOOK else sessions - 1
    return (sessions**3 - before**3) / max(planned, FIRST_LOOK) ** 3


def paired(
    rounds: Sequence[Sequence[float]], tolerance: float, comparisons: int, planned: int, session_s: float
) -> Verdict:
    """Judge a cell whose base was measured in the same sessions.

    Args:
        rounds: ln(t_candidate / t_base) of every round, a list for each session so far.
        tolerance: m, the slowdown that must be found.
        comparisons: how many of the run can fail.
        planned: sessions that the budget allows.
        session_s: wall seconds of one session, for the advice when nothing is clear.
    """
    deltas = [location(session) for session in rounds]
    cells = comparisons
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
    return decide(
        mean,
        low=mean - quantile(df, 1 - ALPHA_FAIL / cells * share) * error,
        high=mean + quantile(df, 1 - ALPHA_PASS * share) * error,
        tolerance=tolerance,
        ratio=from_logs(deltas),
        advice=_advice(deltas, tolerance, cells, planned, session_s),
    )


def _advice(deltas: Sequence[float], tolerance: float, cells: int, planned: int, session_s: float) -> str:
    mean, error = mean_and_standard_error(deltas)
    sd, margin = error * math.sqrt(len(deltas)), math.log1p(tolerance)
    towards_fail = mean > margin / 2
    distance = mean if towards_fail else margin - mean
    alpha = ALPHA_FAIL / cells if towards_fail else ALPHA_PASS
    # The last look's share of a long plan is about its whole in a short one; half is a fair stand-in for the forecast.
    needed = next(
        (n for n in range(len(deltas) + 1, 1000) if quantile(n - 1, 1 - alpha / 2) * sd / math.sqrt(n) < distance),
        None,
    )
    upper = max(mean, 0) + quantile(len(deltas) - 1, 1 - ALPHA_PASS * spending(planned, planned)) * error
    reachable = math.expm1(min(upper, math.log(10)))
    minutes = (
        f"about {(needed - len(deltas)) * session_s / 60:.1f} more minutes" if needed else "more time than is sensible"
    )
    return f"it needs {minutes}, a quieter machine, or a tolerance of {max(reachable, tolerance):.0%}"
