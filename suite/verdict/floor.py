"""Efficiency against a floor from configuration, without any baseline.

In logarithms a session gives one number, the shortfall

    f = ln(floor) - ln(E),

by how much a step on k devices takes longer than the floor allows, so that the tolerance m of every comparison of times
means the same here: a cell is below its floor by the tolerance where f >= ln(1 + m), E <= floor / (1 + m). Over the
looks of a run, each with its share of the error (`spending`),

    FAIL   where the lower bound of f is above 0:        P(FAIL | E >= floor) <= ALPHA_FAIL / comparisons,
    PASS   where its upper bound is below ln(1 + m):     P(PASS | E <= floor / (1 + m)) <= ALPHA_PASS,

by the union bound and the t distribution over sessions, at any noise. Between the two a session more may tip it either
way, and either is right. A comparison of builds asks an estimate of half the margin for a FAIL; a floor does not,
because it is where somebody drew the line and not what another build happened to reach.

Sessions are taken as independent draws: E is paired within a block, but moves from session to session.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from suite.verdict.decide import quantile
from suite.verdict.metrics import Interval, from_logs, mean_and_standard_error
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome, Verdict
from suite.verdict.paired import FIRST_LOOK, spending

_MOST_SESSIONS = 1000  # a forecast above it is no plan


def floor(
    log_efficiencies: Sequence[float],
    minimum: float,
    comparisons: int,
    planned: int,
    session_s: float,
    *,
    tolerance: float = 0.05,
) -> Verdict:
    """Judge a cell's efficiency against the least that is asked of it; never asked for oversubscribed cells.

    Args:
        log_efficiencies: ln E of each session so far.
        minimum: the floor, as a fraction (0.8 for 80 %).
        comparisons: how many of the run can fail.
        planned: sessions that the budget allows.
        session_s: wall seconds of one session, for the advice when nothing is clear.
        tolerance: m; an efficiency of `minimum / (1 + m)` must be found.

    Returns:
        A verdict without a ratio: nothing is compared with another build.
    """
    sessions = len(log_efficiencies)
    if sessions < FIRST_LOOK:
        return Verdict(
            Outcome.INCONCLUSIVE,
            f"efficiency: {sessions} session(s) measured, {FIRST_LOOK} are needed to hold it against the floor of "
            f"{minimum:.2f}: raise the budget to about {math.ceil((FIRST_LOOK + 1) * session_s)} s",
        )
    mean, error = mean_and_standard_error([math.log(minimum) - value for value in log_efficiencies])
    share, df = spending(sessions, planned), sessions - 1
    said = f"efficiency {_words(from_logs(log_efficiencies))}, floor {minimum:.2f}"
    if mean > quantile(df, 1 - ALPHA_FAIL / comparisons * share) * error:
        return Verdict(Outcome.FAIL, f"{said}: surely below it")
    if mean + quantile(df, 1 - ALPHA_PASS * share) * error < math.log1p(tolerance):
        return Verdict(Outcome.PASS, f"{said}: not below it by {tolerance:.0%} or more")
    return Verdict(
        Outcome.INCONCLUSIVE,
        f"{said}: neither surely below it nor surely above {minimum / (1 + tolerance):.2f}: "
        f"{_advice(mean, error, sessions, comparisons, session_s, tolerance)}",
    )


def _words(interval: Interval | None) -> str:
    assert interval is not None, "there is at least one session"
    if interval.low is None or interval.high is None:
        return f"{interval.estimate:.2f}"
    return f"{interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _advice(mean: float, error: float, sessions: int, comparisons: int, session_s: float, tolerance: float) -> str:
    """Sessions until the nearer of the two decisions, at half of its error: what a last look spends is about that."""
    sd, margin = error * math.sqrt(sessions), math.log1p(tolerance)
    ways = ((mean, ALPHA_FAIL / comparisons), (margin - mean, ALPHA_PASS))
    needed = next(
        (
            n
            for n in range(sessions + 1, _MOST_SESSIONS)
            if any(quantile(n - 1, 1 - alpha / 2) * sd / math.sqrt(n) < distance for distance, alpha in ways)
        ),
        None,
    )
    if needed is None:
        return "it needs a quieter machine, or a larger tolerance"
    return f"it needs about {(needed - sessions) * session_s / 60:.1f} more minutes, or a quieter machine"
