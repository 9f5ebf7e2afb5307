"""Compare a cell with accepted runs of other times, and say where they alone may clear it.

Between runs a machine changes in ways that no session of one run shows, so the unit is the run. With level and spread
from n runs, the deviation of one more run of the same build,

    delta = ln t_candidate - mean(ln t_accepted),   has variance   s^2 (1 + 1/n),

and s^2 is estimated from the runs themselves: delta over its root follows Student's t. That assumes exchangeable runs,
which is not guaranteed: three that were accepted in one hour agree, and the next day differs. So a verdict comes from a
base in the same run (`suite.run.accepted`), and a FAIL never from here. Where there is no such base, a PASS asks that
`ENOUGH_RUNS` runs of this host, each an hour or more after the one before it, show a spread whose upper limit is a
third of the tolerance or less (`clears`). Where runs are too few to show how they differ, the interval rests on
calibrate's figure for s, if there is one.

Hosts of one machine key have levels of their own. Where runs of the candidate's host exist, they alone give the level,
and the runs of every host, each around its own host's mean, the spread. Where too few runs share a host to show a
spread (machines that exist for one job), the host is the unit: the newest run of each, and how those differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple

from suite.verdict.metrics import Interval, t_quantile
from suite.verdict.outcome import ALPHA_PASS, percent

MIN_BASELINE_RUNS = 3  # how runs differ from one another is estimated from them, and two give no usable estimate
_ENOUGH_DF = MIN_BASELINE_RUNS - 1

# Of one host: the smallest number whose one-sided 95 % bound, t(n - 1) sqrt(1 + 1/n), is within a fifth of what any
# number would give. More would describe older conditions and gain little.
KEPT_RUNS = 9
MOST_HOSTS = 9  # so that machines which exist for one job do not add up

ENOUGH_RUNS = 5  # of one host, `APART_S` seconds apart, before they clear a cell or show what the machine could do
APART_S = 3600.0


@dataclass(frozen=True)
class Run:
    """One run's time for a cell.

    Attributes:
        log_t: ln of its seconds, a step or an epoch, the same for all runs compared.
        sessions: how many it was measured in.
        log_se: standard error of `log_t` over the sessions; None where it is not known, as from a single one.
        host: tells machines of one key apart.
        started_s: when it began, in seconds of any clock that all runs share; None where it is not known.
        log_efficiency: ln E; None where it is not known.
        parts: what each part of the gap takes of the ideal step, by name; empty where it is not known.
        estimate: of what `log_t` and `log_efficiency` are; only runs of one estimate are compared.
    """

    log_t: float
    sessions: int = 1
    log_se: float | None = None
    host: str = ""
    started_s: float | None = None
    log_efficiency: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    estimate: str = ""


class RunSpread(NamedTuple):
    """How runs of one build differ on this machine, as `calibrate` found it.

    Attributes:
        sd: standard deviation of one run's ln t, unpaired, its sampling error included; above 0.
        df: degrees of freedom behind it, at least 1.
    """

    sd: float
    df: float


class RunDifference(NamedTuple):
    """How a run differs from accepted ones.

    Attributes:
        ratio: t_candidate / t_accepted with its 95 % interval; without one where how runs differ is not known.
        said: the same in words, and why there is no interval.
    """

    ratio: Interval
    said: str


class _Level(NamedTuple):
    """The runs that a new one is compared with; `variance` and `df` are of one run's ln t around their level."""

    runs: Sequence[Run]
    variance: float
    df: float
    by_host: bool  # whether `variance` includes what differs between hosts
    elsewhere: bool  # whether all runs are of other hosts than the candidate's


def difference(
    candidate: Run, accepted: Sequence[Run], spread: RunSpread | None = None, pin: Run | None = None
) -> RunDifference:
    """Compare a cell with accepted runs of other times, or with one older run.

    Args:
        candidate: the run in question.
        accepted: those of the cell's present level, oldest first; one at least.
        spread: calibrate's figure for how runs differ; it counts where `accepted` are too few to show it.
        pin: an older run, against which slow creep adds up. It alone is the level then, and the newest runs show only
            how runs differ.
    """
    level = _level(candidate.host, accepted)
    against = level.runs if pin is None else [pin]
    delta = candidate.log_t - fmean(run.log_t for run in against)
    text = f"{percent(delta)} than " + (f"the {len(against)} accepted run(s)" if pin is None else "the pinned run")
    if why := _why_no_interval(candidate, level, spread, pin):
        return RunDifference(Interval(math.exp(delta)), f"{text}, {why}")
    variance, df = level.variance, level.df
    if df < _ENOUGH_DF and spread is not None:  # two estimates of one variance, each by its degrees of freedom
        variance = (df * variance + spread.df * spread.sd**2) / (df + spread.df)
        df += spread.df
    single = [candidate] if pin is None else [candidate, pin]
    excess = [_excess(run, level.runs) for run in single]
    df = min([df, *(run.sessions - 1 for run, more in zip(single, excess, strict=True) if more > 0)])
    error = math.sqrt(variance * (1 + 1 / len(against)) + math.fsum(excess))
    half = t_quantile(int(df), 0.975) * error
    low, high = delta - half, delta + half
    return RunDifference(Interval(delta, low, high).exp, f"{text} (95 %: {percent(low)} to {percent(high)})")


def clears(candidate: Run, accepted: Sequence[Run], tolerance: float, pin: Run | None = None, *, runs: int = 1) -> bool:
    """Return whether accepted runs of other hours show that a cell is not slower by the tolerance or more.

    P(PASS | slower by the tolerance) <= ALPHA_PASS where runs hours apart are exchangeable. Arguments as in
    `difference` and, for the runs of a bisection, in `suite.verdict.paired`; `tolerance` is a share.
    """
    here = hours_apart(alike(candidate, accepted))
    df, margin = len(here) - 1, math.log1p(tolerance)
    if len(here) < ENOUGH_RUNS or (pin is not None and not alike(candidate, [pin])):
        return False
    from scipy.special import chdtri

    variance = _squares(here) / df
    if math.sqrt(variance * df / float(chdtri(df, 1 - ALPHA_PASS))) > margin / 3:
        return False
    against = here if pin is None else [pin]
    delta = candidate.log_t - fmean(run.log_t for run in against)
    single = [candidate] if pin is None else [candidate, pin]
    if any(run.log_se is None and run.sessions < max(each.sessions for each in here) for run in single):
        return False
    excess = [_excess(run, here) for run in single]
    df = min([df, *(run.sessions - 1 for run, more in zip(single, excess, strict=True) if more > 0)])
    error = math.sqrt(variance * (1 + 1 / len(against)) + math.fsum(excess))
    return delta < margin / 2 and delta + t_quantile(df, 1 - ALPHA_PASS / runs) * error < margin


def alike(candidate: Run, runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the candidate's host whose times are of the same estimate."""
    return [run for run in runs if (run.host, run.estimate) == (candidate.host, candidate.estimate)]


def newest(runs: Sequence[Run]) -> list[int]:
    """Return the places of the runs that a later one is compared with, in ascending order.

    They are, of each of the `MOST_HOSTS` hosts that ran last, the newest run and as many others as make `KEPT_RUNS`,
    newest first: those that `hours_apart` returns before those accepted in one sitting.

    Args:
        runs: of one cell, oldest first.
    """
    hosts: dict[str, list[int]] = {}
    for place in reversed(range(len(runs))):
        hosts.setdefault(runs[place].host, []).append(place)
    chosen: list[int] = []
    for last, *others in list(hosts.values())[:MOST_HOSTS]:
        apart = {run.started_s for run in hours_apart([runs[place] for place in (last, *others)])}
        first = [place for place in others if runs[place].started_s in apart]
        chosen += [last, *first, *(place for place in others if place not in first)][:KEPT_RUNS]
    return sorted(chosen)


def hours_apart(runs: Sequence[Run]) -> list[Run]:
    """Return runs of which each began `APART_S` or more after the one before it, without those of unknown time."""
    known = [(run.started_s, run) for run in runs if run.started_s is not None]
    apart: list[Run] = []
    next_s = -math.inf
    for started_s, run in sorted(known, key=itemgetter(0)):
        if started_s >= next_s:
            apart.append(run)
            next_s = started_s + APART_S
    return apart


def _level(host: str, accepted: Sequence[Run]) -> _Level:
    hosts: dict[str, list[Run]] = {}
    for run in accepted:
        hosts.setdefault(run.host, []).append(run)
    own, newest = hosts.get(host), [runs[-1] for runs in hosts.values()]
    df = len(accepted) - len(hosts)
    if (own and df >= _ENOUGH_DF) or len(newest) < MIN_BASELINE_RUNS:
        variance = math.fsum(map(_squares, hosts.values())) / df if df else 0.0
        return _Level(own or newest, variance, df if own else 0, by_host=False, elsewhere=not own)
    df = len(newest) - 1
    return _Level(newest, _squares(newest) / df, df, by_host=True, elsewhere=not own)


def _why_no_interval(candidate: Run, level: _Level, spread: RunSpread | None, pin: Run | None) -> str:
    few = f"is not known from fewer than {MIN_BASELINE_RUNS}"
    for each in (*level.runs, *([] if pin is None else [pin])):
        if each.estimate != candidate.estimate:
            return f"whose time is of the {each.estimate}, and not of the {candidate.estimate}"
    if pin is not None and pin.host != candidate.host and not level.by_host:
        return "which is of another host"
    if level.df < _ENOUGH_DF and level.elsewhere:
        return f"all of other hosts, and how hosts differ {few} of them"
    if level.df < _ENOUGH_DF and spread is None:
        return f"but how runs differ on this machine {few}"
    most = max(run.sessions for run in level.runs)
    for run, which in ((candidate, "it"), (pin, "the pin")):
        if run is not None and run.sessions < most and (run.log_se is None or run.sessions < 2):
            return f"but {which} was measured in {run.sessions} session(s), accepted runs in up to {most}"
    return ""


def _squares(runs: Sequence[Run]) -> float:
    mean = fmean(run.log_t for run in runs)
    return math.fsum((run.log_t - mean) ** 2 for run in runs)


def _excess(single: Run, runs: Sequence[Run]) -> float:
    """Return the variance that a run has beyond the others' because it was measured in fewer sessions than they were.

    It is what the run's own sessions show, or what those of the others suggest for as many, if that is more: a few can
    agree by chance. An unknown standard error of theirs counts as 0.
    """
    if single.log_se is None or single.sessions >= max(run.sessions for run in runs):
        return 0.0
    known = [(run.log_se or 0.0, run.sessions) for run in runs]
    usual = math.fsum(log_se**2 for log_se, _ in known) / len(runs)
    of_a_session = math.fsum(log_se**2 * sessions for log_se, sessions in known) / len(runs)
    return max(0.0, max(single.log_se**2, of_a_session / single.sessions) - usual)
