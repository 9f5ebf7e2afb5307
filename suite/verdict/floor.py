"""Judge an efficiency against a floor from configuration, without any base.

Each session gives the shortfall f = ln(floor) - ln(E): a step on k devices takes that much longer than the floor
allows. FAIL and PASS are those of `suite.verdict.paired` with f for delta, so that by the union bound over the looks
P(FAIL | E >= floor) <= ALPHA_FAIL / comparisons and P(PASS | E <= floor / (1 + m)) <= ALPHA_PASS, m the tolerance.

No base shares what is special about the hour, so the bounds add a spread of ln E between runs, `RUN_SD`, which one run
cannot show. Where runs differ by an SD of 1 %, 2 % and 3 %, a cell exactly at its floor FAILs alone in 0, 0.4 and 3.8 %
of runs (tests/suite/plan/test_floors.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from suite.verdict.metrics import from_logs, mean_and_standard_error, observations_needed, t_quantile
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome, Verdict
from suite.verdict.paired import FIRST_LOOK, spending
from suite.verdict.reasons import Reason

RUN_SD = 0.02  # of ln E between runs of equal code on one machine, assumed


def floor(logs: Sequence[float], minimum: float, comparisons: int, planned: int, tolerance: float = 0.05) -> Verdict:
    """Judge a cell's efficiency against the least that is asked of it; not for oversubscribed cells.

    Args:
        logs: ln E of each session so far.
        minimum: the floor, as a fraction (0.8 for 80 %).
        comparisons: how many of the run can fail.
        planned: sessions that the budget allows.
        tolerance: m; an efficiency of `minimum / (1 + m)` must be found.

    Returns:
        A verdict without a ratio. Where it is INCONCLUSIVE, `lacking` is how many more sessions would decide, whether
        they are planned or not.
    """
    if len(logs) < FIRST_LOOK:
        few = Reason("few sessions for a floor", {"sessions": len(logs), "floor": minimum, "needed": FIRST_LOOK})
        return Verdict(Outcome.INCONCLUSIVE, few, lacking=FIRST_LOOK + 1 - len(logs))
    margin, alpha_fail = math.log1p(tolerance), ALPHA_FAIL / comparisons
    suspicious = crossing = False
    for count in range(FIRST_LOOK, len(logs) + 1):
        seen, share = logs[:count], spending(count, planned)
        mean, error = mean_and_standard_error([math.log(minimum) - value for value in seen])
        variance, shown, large = error**2 * count, from_logs(seen), mean >= margin / 2
        of = {"efficiency": shown.estimate, "low": shown.low or 0.0, "high": shown.high or 0.0, "floor": minimum}
        of["tolerance"] = tolerance
        crossing = large and mean > _half_width(variance, count, alpha_fail * share)
        if crossing and suspicious:
            return Verdict(Outcome.FAIL, Reason("below the floor", {**of, "confidence": 1 - ALPHA_FAIL}))
        if not large and mean + _half_width(variance, count, ALPHA_PASS * share) < margin:
            return Verdict(Outcome.PASS, Reason("above the floor", of))
        # Suspicion alone spends no error.
        suspicious = suspicious or (large and mean > _half_width(variance, count, alpha_fail))
    decisions = [(margin - mean, ALPHA_PASS), *([(mean, alpha_fail)] if large else [])]
    needed = observations_needed(
        len(logs), lambda n: any(_half_width(variance, n, alpha * spending(n, n)) < away for away, alpha in decisions)
    )
    why = Reason("floor unconfirmed" if crossing else "floor undecided", of)
    return Verdict(Outcome.INCONCLUSIVE, why, lacking=math.inf if needed is None else needed - len(logs))


def _half_width(variance: float, sessions: int, alpha: float) -> float:
    """Return the distance of a one-sided bound after so many sessions, where f of one session has this variance.

    Degrees of freedom by Satterthwaite (1946): the sessions' part has one less than there are, `RUN_SD` is given.
    """
    own = variance / sessions
    both = own + RUN_SD**2
    df = (sessions - 1) * (both / own) ** 2 if own else math.inf
    return t_quantile(min(df, 1e6), 1 - alpha) * math.sqrt(both)
