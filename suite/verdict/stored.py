"""A cell against accepted runs of other times: how far it is off them, and within which interval. It decides nothing.

Between runs a machine changes in ways that no session of one run shows, so the unit is the run, and what an estimate is
held against is how runs differ from one another. With level and spread from n runs, the deviation of one more of the
same build,

    delta = ln t_candidate - mean(ln t_accepted),   has variance   s^2 (1 + 1/n),

and s^2 is estimated from the runs themselves: delta over its root follows Student's t. That supposes that runs are
exchangeable, which nobody can promise: three that were accepted in one sitting agree, and the next day differs. So what
is found here is shown, and a verdict comes from a base in the same run (`suite.run.suspicion`).

Where runs are too few to show how they differ, the interval rests on calibrate's figure for s, if there is one.

Hosts of one machine key have levels of their own. Where runs of the candidate's host are there, they alone give the
level, and the runs of every host, each around its own host's mean, the spread. Where too few runs share a host to show
one (machines that live for one job), the host is the unit: the newest run of each, and how those differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from suite.verdict.metrics import Interval, t_quantile
from suite.verdict.outcome import percent

MIN_BASELINE_RUNS = 3  # how runs differ from one another is estimated from them, and two give no usable estimate
_ENOUGH_DF = MIN_BASELINE_RUNS - 1

# The smallest number whose one-sided 95 % bound, t(n - 1) sqrt(1 + 1/n), is within a fifth of what any number would
# give. More would describe older surroundings and gain little.
KEPT_RUNS = 9


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


class Difference(NamedTuple):
    """How a run differs from accepted ones.

    Attributes:
        ratio: t_candidate / t_accepted with its 95 % interval; without one where how runs differ is not known.
        said: the same in words, and why there is no interval.
    """

    ratio: Interval
    said: str


def difference(
    candidate: Run, accepted: Sequence[Run], spread: RunSpread | None = None, pin: Run | None = None
) -> Difference:
    """Hold a cell against accepted runs of other times, or against one older run.

    Args:
        candidate: the run that is looked at.
        accepted: those of the cell's present level, oldest first; one at least.
        spread: calibrate's figure for how runs differ; it counts where these are too few to show it.
        pin: an older run, for what creeps: each week's run is close to those before it. The level is then the pin's
            alone, and how runs differ is what the newest ones show, in which a creep's own slope is spread.
    """
    seen = _predict(candidate.host, accepted)
    what = f"the {len(seen.runs)} accepted run(s)" if pin is None else "the pinned run"
    seen = replace(seen, pin=pin)
    delta = candidate.log_t - seen.mean
    said = f"{percent(delta)} than {what}"
    if why := _incomparable(candidate, seen, spread):
        return Difference(Interval(math.exp(delta)), f"{said}, {why}")
    if seen.df < _ENOUGH_DF and spread is not None:
        seen = seen.pooled(spread)
    alone = (candidate,) if pin is None else (candidate, pin)
    excess = [_excess(run, seen.runs) for run in alone]
    df = min([seen.df, *(run.sessions - 1 for run, more in zip(alone, excess, strict=True) if more > 0)])
    half = t_quantile(int(df), 0.975) * seen.error(math.fsum(excess))
    low, high = delta - half, delta + half
    return Difference(
        Interval(math.exp(delta), math.exp(low), math.exp(high)), f"{said} (95 %: {percent(low)} to {percent(high)})"
    )


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


def _incomparable(candidate: Run, seen: _Prediction, spread: RunSpread | None) -> str:
    """Why no interval can be put around the difference; empty where one can."""
    few = f"is not known from fewer than {MIN_BASELINE_RUNS}"
    if seen.pin is not None and seen.pin.host != candidate.host and not seen.by_host:
        return "which is another host's"
    if seen.df < _ENOUGH_DF and seen.elsewhere:
        return f"all of other hosts, and how hosts differ {few} of them"
    if seen.df < _ENOUGH_DF and spread is None:
        return f"but how runs differ on this machine {few}"
    most = max(run.sessions for run in seen.runs)
    for run, which in ((candidate, "it"), (seen.pin, "the pin")):
        if run is not None and run.sessions < most and (run.log_se is None or run.sessions < 2):
            return f"but {which} was measured in {run.sessions} session(s), accepted runs in up to {most}"
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
