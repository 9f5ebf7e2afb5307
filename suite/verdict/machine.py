"""Judge the machine: the efficiency of accepted code here and now, against what it was in accepted runs of this host.

A slower link, driver or card slows a rebuilt base as much as the candidate, so no comparison of times within a run sees
it. What it changes is a ratio inside the run: the same commit keeps less of k devices than it did. With x = ln E of the
accepted commit, measured in this run, and x_1 .. x_n of accepted runs of other hours, the shortfall

    f = mean(x_i) - x   has variance   s^2 (1 + 1/n),

where s^2 is estimated from the accepted runs, and f over its root follows Student's t with n - 1 degrees of freedom.
Where the sessions of this run scatter more than accepted runs do, their standard error takes the place of s for x, and
where they are fewer than an accepted run had, s^2 is so many times as large: a few sessions can agree by chance.

    FAIL   where the lower bound of f is above 0, f is ln(1 + m) / 2 or more, and so much longer is its step, too,
    PASS   where its upper bound is below ln(1 + m), or only one device became faster.

E also falls where one device became faster and k devices did not: then nothing is slower, and a warning says it. Step
times of other hours differ by more than E does, and a new torch or driver can make one device faster. So where versions
have changed, a FAIL needs a step that is longer than accepted runs differ by chance.

That assumes exchangeable runs, hours apart. It is one look, after the last session. Where sessions scatter several
times more than accepted runs do, a FAIL without a cause is up to twice as frequent as promised, because s is then not
added to their error. To add it would cost most of the power wherever rounds are what differs (docs/log.md).

Why E fell is a part of the step that grew. In units of the ideal step the parts sum to 1 / E - 1, so each of them is
held against accepted runs as E is (`cause`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from suite.verdict.diagnose import outdone, supported
from suite.verdict.metrics import Interval, difference, mean_and_standard_error, t_quantile
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome, Verdict
from suite.verdict.paired import FIRST_LOOK
from suite.verdict.reasons import Reason
from suite.verdict.stored import ENOUGH_RUNS, MIN_BASELINE_RUNS, Run, by_chance


def machine(
    log_efficiencies: Sequence[float],
    log_t: float,
    accepted: Sequence[Run],
    comparisons: int,
    *,
    tolerance: float,
    changed: bool = False,
) -> Verdict:
    """Judge the machine by one cell.

    Args:
        log_efficiencies: ln E of the accepted commit in every session of this run.
        log_t: ln of the accepted commit's seconds on k devices in this run, a step or an epoch as in `accepted`.
        accepted: runs of this host, hours apart; those whose efficiency is known count.
        comparisons: how many checks of the run can fail.
        tolerance: m; an efficiency that fell to 1 / (1 + m) must be found.
        changed: whether versions or the driver have changed since.

    Returns:
        A verdict without a ratio: nothing is compared with another build.
    """
    known = [(run, run.log_efficiency) for run in accepted if run.log_efficiency is not None]
    efficiencies, times = [efficiency for _, efficiency in known], [run.log_t for run, _ in known]
    runs, sessions = len(known), len(log_efficiencies)
    if runs < ENOUGH_RUNS:
        return Verdict(Outcome.INCONCLUSIVE, Reason("few accepted runs", {"runs": runs, "needed": ENOUGH_RUNS}))
    if sessions < FIRST_LOOK:
        return Verdict(
            Outcome.INCONCLUSIVE,
            Reason("few sessions of the accepted commit", {"sessions": sessions, "needed": FIRST_LOOK}),
        )
    usual, usual_error = mean_and_standard_error(efficiencies)
    now, error = mean_and_standard_error(log_efficiencies)
    shortfall, margin = usual - now, math.log1p(tolerance)
    fewer = max(1.0, fmean(run.sessions for run, _ in known) / sessions)
    single, df = max((usual_error**2 * runs * fewer, runs - 1), (error**2, sessions - 1))
    spread = math.sqrt(single + usual_error**2)
    of = {"efficiency": math.exp(now), "runs": runs, "least": math.exp(min(efficiencies))}
    of["most"] = math.exp(max(efficiencies))
    low = shortfall - t_quantile(df, 1 - ALPHA_FAIL / comparisons) * spread
    if low > 0 and shortfall >= margin / 2:
        longer = log_t - fmean(times)
        if longer < margin / 2:
            return Verdict(Outcome.PASS, Reason("gap widened", of))
        if changed and longer <= by_chance(times, ALPHA_FAIL / comparisons):
            return Verdict(Outcome.INCONCLUSIVE, Reason("accepted runs differ", of))
        found = {**of, "less": -math.expm1(-low), "confidence": 1 - ALPHA_FAIL}
        return Verdict(Outcome.FAIL, Reason("machine worse", found))
    high = shortfall + t_quantile(df, 1 - ALPHA_PASS) * spread
    if high < margin:
        return Verdict(Outcome.PASS, Reason("machine unchanged", of))
    wider = math.ceil(100 * math.expm1(high)) / 100
    return Verdict(Outcome.INCONCLUSIVE, Reason("machine undecided", {**of, "tolerance": wider} if wider <= 1 else of))


def cause(now: Mapping[str, Interval], dfs: Sequence[float], accepted: Sequence[Mapping[str, float]]) -> str:
    """Return which part of a step grew most since accepted runs, in words; "" where no interval supports one.

    The interval of a growth adds the squared halves of both sides (`difference`): how sessions of this run differ, and
    between which ends one further run is to be expected, t(n - 1) s (1 + 1/n)^(1/2) around the mean of n runs. Parts
    share an error of 5 % (`supported`), and none is named where another one may have grown more.

    Args:
        now: by name, what each part of this run's step takes of the ideal step, with a 95 % interval over sessions.
        dfs: degrees of freedom of each interval.
        accepted: the same of accepted runs of this host, hours apart; those with the same parts count.
    """
    runs = [parts for parts in accepted if parts.keys() == now.keys()]
    if not now or len(runs) < MIN_BASELINE_RUNS:
        return ""
    grown = [difference(share, _further([parts[name] for parts in runs])) for name, share in now.items()]
    named = supported(grown, [min(df, len(runs) - 1) for df in dfs])
    if named is None or outdone(grown, named):
        return ""
    name, by = list(now)[named], grown[named]
    return (
        f"cause: {name}, which takes {by.estimate:.0%} [{by.low:.0%}, {by.high:.0%}] of an ideal step more than in "
        f"{len(runs)} accepted runs"
    )


def _further(values: Sequence[float]) -> Interval:
    """Return the 95 % interval of one further value like these, of which there are two or more."""
    mean, half = fmean(values), by_chance(values, 0.025)
    return Interval(mean, mean - half, mean + half)
