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
from dataclasses import dataclass, replace

from suite.metrics import Interval
from suite.verdict.decide import decide, quantile
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome, Verdict, percent

MIN_BASELINE_RUNS = 3  # how runs differ from one another is estimated from them, and two give no usable estimate
_ENOUGH_DF = MIN_BASELINE_RUNS - 1

# The smallest number whose bound for PASS, t(n - 1) sqrt(1 + 1/n), is within a fifth of what any number would give.
# More would describe older surroundings and gain little.
KEPT_RUNS = 9

_BASE = "measure a base in the same run (--scaling-against)"
_MORE_RUNS = "accept more runs"


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
    return _judge(candidate, seen, f"the {len(seen.runs)} accepted run(s)", tolerance, comparisons, spread)


def against_pin(
    candidate: Run,
    pin: Run,
    accepted: Sequence[Run],
    tolerance: float,
    comparisons: int,
    spread: RunSpread | None = None,
) -> Verdict:
    """Judge a cell against one older run, for what creeps: each week's run is close to those before it.

    The level is the pin's alone, so s^2 (1 + 1/n) has n = 1; how runs differ is what the newest ones show, in which a
    creep's own slope is spread. The same promises as `against_runs`; where the pin is one of `accepted`, its deviation
    is in the estimated spread as well, which only makes the bounds wider.

    Args:
        candidate: the run to be judged.
        pin: the oldest accepted run of the cell's present level.
        accepted: the newest ones, oldest first.
        tolerance, comparisons, spread: as in `against_runs`.
    """
    if not accepted:
        return Verdict(Outcome.NO_BASELINE, "no accepted run has this cell: --scaling-accept keeps one")
    seen = _predict(candidate.host, accepted)
    if pin.host != candidate.host and not seen.by_host:
        delta = candidate.log_t - pin.log_t
        reason = f"{percent(delta)} than the pinned run, which is another host's: {_BASE}"
        return Verdict(Outcome.INCONCLUSIVE, reason, Interval(math.exp(delta)))
    return _judge(candidate, replace(seen, pin=pin), "the pinned run", tolerance, comparisons, spread)


def stored(log_t: float, baseline_log_t: Sequence[float], tolerance: float, cells: int) -> Verdict:
    """The same for runs of which nothing but ln t is known: one host, equally many sessions."""
    return against_runs(Run(log_t), [Run(value) for value in baseline_log_t], tolerance, cells)


@dataclass(frozen=True)
class _Prediction:
    """The level that a new run is held against, and how runs differ around it.

    Attributes:
        runs: those whose mean is the level, unless one older run alone is.
        variance, df: of one run's ln t.
        by_host: whether they are of different hosts, so that `variance` has what differs between hosts in it.
        elsewhere: whether they are all of other hosts than the candidate's.
        pin: the older run.
    """

    runs: Sequence[Run]
    variance: float
    df: float
    by_host: bool
    elsewhere: bool
    pin: Run | None = None

    @property
    def level(self) -> Sequence[Run]:
        return self.runs if self.pin is None else (self.pin,)

    @property
    def mean(self) -> float:
        return math.fsum(run.log_t for run in self.level) / len(self.level)

    def error(self, excess: float) -> float:
        """Standard error of the difference between a new run and the level: one run's spread, and the level's own."""
        return math.sqrt(self.variance * (1 + 1 / len(self.level)) + excess)

    def pooled(self, spread: RunSpread) -> _Prediction:
        """With calibrate's estimate of the same variance, each by its degrees of freedom."""
        df = self.df + spread.df
        variance = (self.df * self.variance + spread.df * spread.sd**2) / df
        return replace(self, variance=variance, df=df)


def _predict(host: str, accepted: Sequence[Run]) -> _Prediction:
    hosts: dict[str, list[Run]] = {}
    for run in accepted:
        hosts.setdefault(run.host, []).append(run)
    own, newest = hosts.get(host, []), [runs[-1] for runs in hosts.values()]
    df = len(accepted) - len(hosts)
    if (own and df >= _ENOUGH_DF) or len(newest) < MIN_BASELINE_RUNS:
        variance = math.fsum(map(_squares, hosts.values())) / df if df else 0.0
        level = own or newest
        return _Prediction(level, variance, df if own else 0, by_host=False, elsewhere=not own)
    df = len(newest) - 1
    return _Prediction(newest, _squares(newest) / df, df, by_host=True, elsewhere=not own)


def _judge(
    candidate: Run, seen: _Prediction, what: str, tolerance: float, comparisons: int, spread: RunSpread | None
) -> Verdict:
    delta = candidate.log_t - seen.mean
    said = f"{percent(delta)} than {what}"
    if why := _incomparable(candidate, seen, spread):
        return Verdict(Outcome.INCONCLUSIVE, f"{said}, {why}", Interval(math.exp(delta)))
    enough = seen.df >= _ENOUGH_DF
    pooled = seen if spread is None or seen.by_host else seen.pooled(spread)
    final = seen if enough else pooled
    alone = (candidate,) if seen.pin is None else (candidate, seen.pin)
    excess = math.fsum(_excess(run, seen.runs) for run in alone)
    fewest_df = min((run.sessions - 1 for run in alone if _excess(run, seen.runs) > 0), default=math.inf)
    final_df, final_se = int(min(final.df, fewest_df)), final.error(excess)
    half = quantile(final_df, 0.975) * final_se
    found = decide(
        delta,
        low=delta - quantile(int(min(pooled.df, fewest_df)), 1 - ALPHA_FAIL / comparisons) * pooled.error(excess),
        high=delta + quantile(final_df, 1 - ALPHA_PASS) * final_se,
        tolerance=tolerance,
        ratio=Interval(math.exp(delta), math.exp(delta - half), math.exp(delta + half)),
        advice=_advice(seen, math.log1p(tolerance) - max(delta, 0.0)) if enough else f"{_MORE_RUNS}, or {_BASE}",
    )
    if found.outcome is Outcome.PASS and not enough:
        return Verdict(
            Outcome.INCONCLUSIVE,
            f"{said}; only {MIN_BASELINE_RUNS} or more show how runs differ, and nothing passes on calibrate's figure "
            f"alone: {_MORE_RUNS}, or {_BASE}",
            found.ratio,
        )
    return found


def _incomparable(candidate: Run, seen: _Prediction, spread: RunSpread | None) -> str:
    """Why no interval can be put around the difference, and what to do about it; empty where one can."""
    few = f"is not known from fewer than {MIN_BASELINE_RUNS}"
    most = max(run.sessions for run in seen.runs)
    if seen.df < _ENOUGH_DF and seen.elsewhere:
        return f"all of other hosts, and how hosts differ {few} of them: {_MORE_RUNS}, or {_BASE}"
    if seen.df < _ENOUGH_DF and spread is None:
        return f"but how runs differ on this machine {few}: {_MORE_RUNS}, or {_BASE}"
    for run, remedy in ((candidate, "raise the budget"), (seen.pin, _MORE_RUNS)):
        if run is not None and run.sessions < most and (run.log_se is None or run.sessions < 2):
            which = "it" if run is candidate else "the pin"
            return (
                f"but {which} was measured in {run.sessions} session(s), accepted runs in up to {most}: "
                f"{remedy}, or {_BASE}"
            )
    return ""


def _squares(runs: Sequence[Run]) -> float:
    mean = math.fsum(run.log_t for run in runs) / len(runs)
    return math.fsum((run.log_t - mean) ** 2 for run in runs)


def _excess(candidate: Run, runs: Sequence[Run]) -> float:
    """Variance that the candidate, or a pin, has over the runs because it was measured in fewer sessions.

    With as many sessions as any of them it is a draw like theirs, or a better one, and nothing is added. A standard
    error of theirs that is not known counts as 0, which only makes the candidate's excess larger.
    """
    if candidate.log_se is None or candidate.sessions >= max(run.sessions for run in runs):
        return 0.0
    usual = math.fsum((run.log_se or 0.0) ** 2 for run in runs) / len(runs)
    return max(0.0, candidate.log_se**2 - usual)


def _advice(seen: _Prediction, room: float) -> str:
    """What would decide: as many accepted runs as leave `room` for the bound, if any number that is kept does."""
    sd, now = math.sqrt(seen.variance), len(seen.runs)

    def bound(n: int) -> float:
        return quantile(n - 1, 1 - ALPHA_PASS) * sd * math.sqrt(1 + (1 / n if seen.pin is None else 1))

    needed = next((n for n in range(now + 1, KEPT_RUNS + 1) if bound(n) < room), None)
    if needed is None:
        return f"runs differ by {sd:.1%} here, too much for stored ones to decide: {_BASE}"
    return f"{needed} accepted runs would decide it, or {_BASE}"
