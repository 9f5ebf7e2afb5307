"""A cell against accepted runs of other times: the unit is the run, and they predict a new one.

Between runs a machine changes in ways that no session of one run shows, so what an estimate is held against is how runs
differ from one another. With level and spread from n runs, the deviation of one more that is no slower,

    delta = ln t_candidate - mean(ln t_accepted),   has variance   s^2 (1 + 1/n),

and s^2 is estimated from the runs themselves: delta over its root follows Student's t exactly, at any noise.

The two outcomes do not rest on the same evidence. PASS is final, so it stands on the accepted runs alone. FAIL is a
suspicion, because the baseline's commit is then rebuilt and measured beside the candidate; it may lean on calibrate's
figure for s, pooled with the runs' own. A figure that was learned in a quiet hour can therefore cost a rebuild, and
never let a slower build through.

Hosts of one machine key have levels of their own. Where runs of the candidate's host are there, they alone give the
level, and the runs of every host, each around its own host's mean, the spread. Where too few runs share a host to show
one (machines that live for one job), the host is the unit: the newest run of each, and how those differ.

Judged once, at the end of a run: nothing is spent over looks here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from suite.metrics import Interval
from suite.verdict.decide import decide, quantile
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome, Verdict, percent

MIN_BASELINE_RUNS = 3  # how runs differ from one another is estimated from them, and two give no usable estimate
_ENOUGH_DF = MIN_BASELINE_RUNS - 1

# The smallest number whose bound for PASS, t(n - 1) sqrt(1 + 1/n), is within a fifth of what any number would give.
# More would describe older surroundings and gain little.
KEPT_RUNS = 9

_REMEDY = "accept more runs, or measure a base in the same run (--scaling-against)"


@dataclass(frozen=True)
class Run:
    """What one run found for a cell.

    Attributes:
        log_t: ln of its seconds, a step or an epoch, the same for all runs compared.
        sessions: how many it was measured in.
        log_se: standard error of `log_t` over the sessions; None where it is not known, as from a single one.
        host: tells machines of one key apart.
    """

    log_t: float
    sessions: int = 1
    log_se: float | None = None
    host: str = ""


@dataclass(frozen=True)
class RunSpread:
    """How runs of one build differ on this machine, as `calibrate` found it.

    Attributes:
        sd: standard deviation of one run's ln t, unpaired, its sampling error included.
        df: degrees of freedom behind it.

    Raises:
        ValueError: not finite, an `sd` that is not above 0, or a `df` below 1.
    """

    sd: float
    df: float

    def __post_init__(self) -> None:
        if not (0 < self.sd < math.inf and 1 <= self.df < math.inf):
            raise ValueError(
                f"run spread sd={self.sd}, df={self.df}: sd must be above 0, df at least 1, both finite; "
                "calibrate again"
            )


def suspicious(found: Verdict) -> bool:
    """Whether the baseline's commit has to be rebuilt and measured beside the candidate: only a PASS stands alone."""
    return found.outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE)


def against_runs(
    candidate: Run, accepted: Sequence[Run], tolerance: float, comparisons: int, spread: RunSpread | None = None
) -> Verdict:
    """Judge a cell against accepted runs of other times.

    P(FAIL | not slower) <= ALPHA_FAIL / comparisons, as far as `spread` holds where one is given;
    P(PASS | slower by the tolerance or more) <= ALPHA_PASS whatever `spread` says.

    Args:
        candidate: the run to be judged.
        accepted: those of the cell's present level, oldest first.
        tolerance: m, the slowdown that must be found.
        comparisons: how many of the run can fail.
        spread: calibrate's figure for how runs differ. With it and fewer than `MIN_BASELINE_RUNS` a FAIL is possible;
            a PASS is not.
    """
    if not accepted:
        return Verdict(Outcome.NO_BASELINE, "no accepted run has this cell: --scaling-accept keeps one")
    seen = _predict(candidate.host, accepted)
    delta = candidate.log_t - seen.mean
    estimate = Interval(math.exp(delta))
    said = f"{percent(delta)} than the {len(accepted)} accepted run(s)"
    enough = seen.df >= _ENOUGH_DF
    if seen.elsewhere and not enough:
        unknown = f"all of other hosts, and how hosts differ is not known from fewer than {MIN_BASELINE_RUNS} of them"
        return Verdict(Outcome.INCONCLUSIVE, f"{said}, {unknown}: {_REMEDY}", estimate)
    if spread is None and not enough:
        unknown = f"how runs differ on this machine is not known from fewer than {MIN_BASELINE_RUNS}"
        return Verdict(Outcome.INCONCLUSIVE, f"{said}, but {unknown}: {_REMEDY}", estimate)
    excess = _excess(candidate, seen.runs)
    if excess is None:
        most = max(run.sessions for run in seen.runs)
        return Verdict(
            Outcome.INCONCLUSIVE,
            f"{said}, but measured in {candidate.sessions} session(s), they in up to {most}: "
            "raise the budget, or measure a base in the same run (--scaling-against)",
            estimate,
        )
    pooled = seen if spread is None or seen.by_host else seen.pooled(spread)
    final = seen if enough else pooled
    fewest_df = candidate.sessions - 1 if excess > 0 else math.inf
    final_df, final_se = min(final.df, fewest_df), final.error(excess)
    half = quantile(int(final_df), 0.975) * final_se
    found = decide(
        delta,
        low=delta - quantile(int(min(pooled.df, fewest_df)), 1 - ALPHA_FAIL / comparisons) * pooled.error(excess),
        high=delta + quantile(int(final_df), 1 - ALPHA_PASS) * final_se,
        tolerance=tolerance,
        ratio=Interval(math.exp(delta), math.exp(delta - half), math.exp(delta + half)),
        advice=_advice(seen, math.log1p(tolerance) - max(delta, 0.0)) if enough else _REMEDY,
    )
    if found.outcome is Outcome.PASS and not enough:
        return Verdict(
            Outcome.INCONCLUSIVE,
            f"{said}; only {MIN_BASELINE_RUNS} or more show how runs differ, and nothing passes on calibrate's figure "
            f"alone: {_REMEDY}",
            found.ratio,
        )
    return found


def stored(log_t: float, baseline_log_t: Sequence[float], tolerance: float, cells: int) -> Verdict:
    """The same for runs of which nothing but ln t is known: one host, equally many sessions."""
    return against_runs(Run(log_t), [Run(value) for value in baseline_log_t], tolerance, cells)


@dataclass(frozen=True)
class _Prediction:
    """The level that a new run is held against, and how runs differ around it.

    Attributes:
        runs: those that give the level.
        variance, df: of one run's ln t.
        by_host: whether they are of different hosts, so that `variance` has what differs between hosts in it.
        elsewhere: whether they are all of other hosts than the candidate's.
    """

    runs: Sequence[Run]
    variance: float
    df: float
    by_host: bool
    elsewhere: bool

    @property
    def mean(self) -> float:
        return math.fsum(run.log_t for run in self.runs) / len(self.runs)

    def error(self, excess: float) -> float:
        """Standard error of the difference between a new run and the level: one run's spread, and the level's own."""
        return math.sqrt(self.variance * (1 + 1 / len(self.runs)) + excess)

    def pooled(self, spread: RunSpread) -> _Prediction:
        """With calibrate's estimate of the same variance, each by its degrees of freedom."""
        df = self.df + spread.df
        variance = (self.df * self.variance + spread.df * spread.sd**2) / df
        return _Prediction(self.runs, variance, df, self.by_host, self.elsewhere)


def _predict(host: str, accepted: Sequence[Run]) -> _Prediction:
    hosts: dict[str, list[Run]] = {}
    for run in accepted:
        hosts.setdefault(run.host, []).append(run)
    own, newest = hosts.get(host, []), [runs[-1] for runs in hosts.values()]
    df = len(accepted) - len(hosts)
    if (own and df >= _ENOUGH_DF) or len(newest) < MIN_BASELINE_RUNS:
        variance = math.fsum(map(_squares, hosts.values())) / df if df else 0.0
        return _Prediction(own or newest, variance, df if own else 0, by_host=False, elsewhere=not own)
    df = len(newest) - 1
    return _Prediction(newest, _squares(newest) / df, df, by_host=True, elsewhere=not own)


def _squares(runs: Sequence[Run]) -> float:
    mean = math.fsum(run.log_t for run in runs) / len(runs)
    return math.fsum((run.log_t - mean) ** 2 for run in runs)


def _excess(candidate: Run, runs: Sequence[Run]) -> float | None:
    """Variance that the candidate has over the runs because it was measured in fewer sessions; None if not known.

    With as many sessions as any of them it is a draw like theirs, or a better one, and nothing is added. A standard
    error of theirs that is not known counts as 0, which only makes the candidate's excess larger.
    """
    if candidate.sessions >= max(run.sessions for run in runs):
        return 0.0
    if candidate.log_se is None or candidate.sessions < 2:
        return None
    usual = math.fsum((run.log_se or 0.0) ** 2 for run in runs) / len(runs)
    return max(0.0, candidate.log_se**2 - usual)


def _advice(seen: _Prediction, room: float) -> str:
    """What would decide: as many accepted runs as leave `room` for the bound, if any number that is kept does."""
    sd, now = math.sqrt(seen.variance), len(seen.runs)
    needed = next(
        (
            n
            for n in range(now + 1, KEPT_RUNS + 1)
            if quantile(n - 1, 1 - ALPHA_PASS) * sd * math.sqrt(1 + 1 / n) < room
        ),
        None,
    )
    if needed is None:
        return f"runs differ by {sd:.1%} here, too much for stored ones to decide: measure a base in the same run (--scaling-against)"
    return f"{needed} accepted runs would decide it, or measure a base in the same run (--scaling-against)"
