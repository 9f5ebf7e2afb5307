"""Accepted runs of other times next to a new run: the ratio that is shown, and which runs a machine's file keeps.

Nothing here decides a cell. Between runs a machine changes in ways that no session of one run shows, so only a base in
the same sessions decides (`suite.run.accepted`), and the unit here is the run. With mean and spread from n runs of the
candidate's host, the deviation of one more run of the same build,

    delta = ln t_candidate - mean(ln t_accepted),   has variance   s^2 (1 + 1/n),

and s^2 is estimated from the runs themselves: delta over its root follows Student's t. That assumes exchangeable runs:
three that were accepted in one hour agree, and the next day differs. Fewer than `MIN_BASELINE_RUNS`, and runs of other
hosts, give a ratio alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple

from suite.verdict.metrics import Interval, mean_and_standard_error, t_quantile
from suite.verdict.reasons import percent

MIN_BASELINE_RUNS = 3  # how runs differ from one another is estimated from them, and two give no usable estimate

# Of one host: the smallest number whose one-sided 95 % bound, t(n - 1) sqrt(1 + 1/n), is within a fifth of what any
# number would give. More would describe older conditions and gain little.
KEPT_RUNS = 9
MOST_HOSTS = 9  # so that machines which exist for one job do not add up

WIDEST = 400.0  # half of an interval of ln t: of twice as much there is no exponential, and a file may say anything
ENOUGH_RUNS = 5  # of one host, `APART_S` seconds apart, before they show what the machine could do
APART_S = 3600.0


@dataclass(frozen=True)
class Run:
    """One run's time for a cell.

    Attributes:
        log_t: ln of its seconds, a step or an epoch, the same for all runs compared.
        sessions: how many it was measured in.
        host: tells machines of one key apart.
        started_s: when it began, in seconds of any clock that all runs share; None where it is not known.
        log_efficiency: ln E; None where it is not known.
        parts: what each part of the gap takes of the ideal step, by name; empty where it is not known.
    """

    log_t: float
    sessions: int = 1
    host: str = ""
    started_s: float | None = None
    log_efficiency: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


class RunDifference(NamedTuple):
    """How a run differs from accepted ones.

    Attributes:
        ratio: t_candidate / t_accepted with its 95 % interval; without one where how runs differ is not known.
        said: the same in words, and why there is no interval.
    """

    ratio: Interval
    said: str


def difference(candidate: Run, accepted: Sequence[Run], pin: Run | None = None) -> RunDifference:
    """Compare a cell with accepted runs of other times.

    Args:
        candidate: the run in question.
        accepted: those of the cell's present level; one at least. Where some are of the candidate's host, only these.
        pin: an older run, with which the candidate is compared instead.
    """
    here = [run for run in accepted if run.host == candidate.host]
    against = [pin] if pin is not None else here or accepted
    delta = candidate.log_t - fmean(run.log_t for run in against)
    text = f"{percent(delta)} than " + (f"the {len(against)} accepted run(s)" if pin is None else "the pinned run")
    if any(run.host != candidate.host for run in against):
        return RunDifference(Interval(math.exp(delta)), f"{text}, of another host")
    if len(against) < MIN_BASELINE_RUNS:
        return RunDifference(Interval(math.exp(delta)), text)
    half = min(WIDEST, by_chance([run.log_t for run in against], 0.025))
    low, high = delta - half, delta + half
    return RunDifference(Interval(delta, low, high).exp, f"{text} (95 %: {percent(low)} to {percent(high)})")


def by_chance(values: Sequence[float], alpha: float) -> float:
    """Return by how much one further value like these exceeds their mean with probability `alpha`."""
    return t_quantile(len(values) - 1, 1 - alpha) * mean_and_standard_error(values)[1] * math.sqrt(len(values) + 1)


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
