"""A cell against accepted runs of other times: the unit is the run, and they predict a new one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from suite.metrics import Interval, mean_and_standard_error, t_quantile
from suite.verdict.decide import decide, quantile
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome, Verdict, percent

MIN_BASELINE_RUNS = 3  # how runs differ from one another is estimated from them, and two give no usable estimate


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
            f"{percent(delta)} than the {runs} accepted run(s), but how runs differ on this machine is not known "
            f"from fewer than {MIN_BASELINE_RUNS}: accept more runs, or measure a base in the same run "
            "(--scaling-against)",
            Interval(math.exp(delta)),
        )
    _, error = mean_and_standard_error(baseline_log_t)
    predicted = error * math.sqrt(runs + 1)  # the spread of one run, and the error of the mean of the accepted ones
    half = t_quantile(runs - 1, 0.975) * predicted
    return decide(
        delta,
        low=delta - quantile(runs - 1, 1 - ALPHA_FAIL / cells) * predicted,
        high=delta + quantile(runs - 1, 1 - ALPHA_PASS) * predicted,
        tolerance=tolerance,
        ratio=Interval(math.exp(delta), math.exp(delta - half), math.exp(delta + half)),
        advice="accept more runs, or measure a base in the same run (--scaling-against)",
    )
