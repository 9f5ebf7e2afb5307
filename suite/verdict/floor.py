"""Judge an efficiency against a floor from configuration, without any baseline.

In logarithms a session gives one number, the shortfall

    f = ln(floor) - ln(E),

by how much a step on k devices takes longer than the floor allows, so that the tolerance m of every comparison of times
means the same here: a cell is below its floor by the tolerance where f >= ln(1 + m), E <= floor / (1 + m). Over the
looks of a run, each with its share of the error (`spending`),

    crossing   where the lower bound of f is above 0 and f is ln(1 + m) / 2 or more,
    FAIL       where it is crossing, and was suspicious at an earlier look: crossing with the whole error as one share,
    PASS       where its upper bound is below ln(1 + m), and f is less than ln(1 + m) / 2,

so that P(FAIL | E >= floor) <= ALPHA_FAIL / comparisons and P(PASS | E <= floor / (1 + m)) <= ALPHA_PASS by the union
bound. Between the two any outcome is right. As against a base (`suite.verdict.paired`), a FAIL takes four sessions: one
that fresh processes add has to show it, too, and the first decision stands.

A base in the same sessions shares what is special about an hour; a floor does not. So the bounds allow for a spread of
ln E between runs, `RUN_SD`, in addition to the spread between sessions, which the t distribution covers at any size.
One run cannot show how runs differ: where they differ by an SD of 1 %, 2 % and 3 %, a cell exactly at its floor FAILs
alone in .000, .004 and .038 of runs (tests/suite/plan/test_floors.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from suite.verdict.metrics import from_logs, mean_and_standard_error, observations_needed, t_quantile
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, CONFIDENCE, Outcome, Verdict
from suite.verdict.paired import FIRST_LOOK, spending

RUN_SD = 0.02  # of ln E between runs of equal code on one machine, assumed


def floor(
    log_efficiencies: Sequence[float],
    minimum: float,
    comparisons: int,
    planned: int,
    session_s: float,
    *,
    tolerance: float = 0.05,
    overrun_s: float = 0.0,
) -> Verdict:
    """Judge a cell's efficiency against the least that is asked of it; not for oversubscribed cells.

    Args:
        log_efficiencies: ln E of each session so far.
        minimum: the floor, as a fraction (0.8 for 80 %).
        comparisons: how many of the run can fail.
        planned: sessions that the budget allows.
        session_s: wall seconds of one session, for the advice when nothing is clear.
        tolerance: m; an efficiency of `minimum / (1 + m)` must be found.
        overrun_s: by how much the sessions took longer than the budget, for the advice.

    Returns:
        A verdict without a ratio: nothing is compared with another build.
    """
    sessions = len(log_efficiencies)
    if sessions < FIRST_LOOK:
        more_s = math.ceil((FIRST_LOOK + 1 - sessions) * session_s + overrun_s)
        return Verdict(
            Outcome.INCONCLUSIVE,
            f"efficiency: {sessions} session(s) measured, {FIRST_LOOK} are needed to hold it against the floor of "
            f"{minimum:.2f}: raise the budget by about {more_s} s",
        )
    margin = math.log1p(tolerance)
    suspicious = crossing = False
    for count in range(FIRST_LOOK, sessions + 1):
        seen, share = log_efficiencies[:count], spending(count, planned)
        mean, error = mean_and_standard_error([math.log(minimum) - value for value in seen])
        variance, shown = error**2 * count, from_logs(seen)
        text = f"efficiency {shown.estimate:.2f} [{shown.low:.2f}, {shown.high:.2f}], floor {minimum:.2f}"
        crossing = mean >= margin / 2 and mean > _half_width(variance, count, ALPHA_FAIL / comparisons * share)
        if crossing and suspicious:
            return Verdict(Outcome.FAIL, f"{text}: below it {CONFIDENCE}")
        if mean < margin / 2 and mean + _half_width(variance, count, ALPHA_PASS * share) < margin:
            return Verdict(Outcome.PASS, f"{text}: not below it by {tolerance:.0%} or more")
        # Suspicion alone spends no error.
        suspicious = suspicious or (
            mean >= margin / 2 and mean > _half_width(variance, count, ALPHA_FAIL / comparisons)
        )
    if crossing:
        possible = "below it, which one more session has to confirm"
    else:
        possible = f"neither clearly below it nor clearly above {minimum / (1 + tolerance):.2f}"
    advice = _advice(mean, variance, sessions, comparisons, session_s, overrun_s, tolerance)
    return Verdict(Outcome.INCONCLUSIVE, f"{text}: {possible}: {advice}")


def _half_width(variance: float, sessions: int, alpha: float) -> float:
    """Return the distance of a one-sided bound after so many sessions, where f of one session has this variance.

    Degrees of freedom by Satterthwaite (1946): the sessions' part has one less than there are, `RUN_SD` is given.
    """
    own = variance / sessions
    both = own + RUN_SD**2
    df = (sessions - 1) * (both / own) ** 2 if own else math.inf
    return t_quantile(min(df, 1e6), 1 - alpha) * math.sqrt(both)


def _advice(
    mean: float,
    variance: float,
    sessions: int,
    comparisons: int,
    session_s: float,
    overrun_s: float,
    tolerance: float,
) -> str:
    """Return the time until the nearer of the two decisions, at the last look of a plan with as many sessions."""
    margin = math.log1p(tolerance)
    decisions = [(margin - mean, ALPHA_PASS)] + ([(mean, ALPHA_FAIL / comparisons)] if mean >= margin / 2 else [])

    def enough(n: int) -> bool:
        share = spending(n, n)
        return any(_half_width(variance, n, alpha * share) < distance for distance, alpha in decisions)

    needed = observations_needed(sessions, enough)
    if needed is None:
        return "it needs a quieter machine, or a larger tolerance"
    minutes = ((needed - sessions) * session_s + overrun_s) / 60
    return f"it needs about {minutes:.1f} more minutes, or a quieter machine"
