"""Judge an efficiency against a floor from configuration, without any baseline.

In logarithms a session gives one number, the shortfall

    f = ln(floor) - ln(E),

by how much a step on k devices takes longer than the floor allows, so that the tolerance m of every comparison of times
means the same here: a cell is below its floor by the tolerance where f >= ln(1 + m), E <= floor / (1 + m). Over the
looks of a run, each with its share of the error (`spending`),

    FAIL   where the lower bound of f is above 0:        P(FAIL | E >= floor) <= ALPHA_FAIL / comparisons,
    PASS   where its upper bound is below ln(1 + m):     P(PASS | E <= floor / (1 + m)) <= ALPHA_PASS,

by the union bound and the t distribution over sessions, at any noise. Between the two any outcome is right. A FAIL
against a base asks for an estimate of half the margin; a floor does not, because somebody drew that line on purpose.

Sessions are taken as independent draws: E is paired within a block, but moves from session to session.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from suite.verdict.metrics import Interval, from_logs, mean_and_standard_error, observations_needed, t_quantile
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, CONFIDENCE, Outcome, Verdict
from suite.verdict.paired import FIRST_LOOK, spending


def floor(
    log_efficiencies: Sequence[float],
    minimum: float,
    comparisons: int,
    planned: int,
    session_s: float,
    *,
    tolerance: float = 0.05,
) -> Verdict:
    """Judge a cell's efficiency against the least that is asked of it; not for oversubscribed cells.

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
    text = f"efficiency {_words(from_logs(log_efficiencies))}, floor {minimum:.2f}"
    if mean > t_quantile(df, 1 - ALPHA_FAIL / comparisons * share) * error:
        return Verdict(Outcome.FAIL, f"{text}: below it {CONFIDENCE}")
    if mean + t_quantile(df, 1 - ALPHA_PASS * share) * error < math.log1p(tolerance):
        return Verdict(Outcome.PASS, f"{text}: not below it by {tolerance:.0%} or more")
    return Verdict(
        Outcome.INCONCLUSIVE,
        f"{text}: neither clearly below it nor clearly above {minimum / (1 + tolerance):.2f}: "
        f"{_advice(mean, error, sessions, comparisons, session_s, tolerance)}",
    )


def _words(interval: Interval | None) -> str:
    if interval is None or interval.low is None or interval.high is None:
        return "" if interval is None else f"{interval.estimate:.2f}"
    return f"{interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _advice(mean: float, error: float, sessions: int, comparisons: int, session_s: float, tolerance: float) -> str:
    """Return the time until the nearer of the two decisions, each at half its error, about a last look's share."""
    sd = error * math.sqrt(sessions)
    decisions = ((mean, ALPHA_FAIL / comparisons), (math.log1p(tolerance) - mean, ALPHA_PASS))

    def enough(n: int) -> bool:
        return any(t_quantile(n - 1, 1 - alpha / 2) * sd / math.sqrt(n) < distance for distance, alpha in decisions)

    needed = observations_needed(sessions, enough)
    if needed is None:
        return "it needs a quieter machine, or a larger tolerance"
    return f"it needs about {(needed - sessions) * session_s / 60:.1f} more minutes, or a quieter machine"
