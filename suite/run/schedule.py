"""How a budget is spent: how many sessions there are, how long the next one may take, and which cells leave. Pure.

The number of sessions is decided before the first look. Cells leave by what sessions cost and by how much they scatter.
A cell that leaves has no verdict: it can only become INCONCLUSIVE. One that looks slower stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, geometric_mean
from typing import NamedTuple, TypeVar

from suite.plan.config import Budget
from suite.verdict import ALPHA_PASS, FIRST_LOOK
from suite.verdict.metrics import observations_needed, t_quantile, variance
from suite.verdict.paired import spending
from suite.verdict.spread import MOST_DF, Middle

ONE_IN = 4  # where accepted commits are rebuilt, at most a quarter of the sessions also times what the figures need
MAX_SESSIONS = {"quick": 6, "full": 20}  # where nothing can be decided, more sessions only narrow the intervals
LEAVE_AFTER = 2  # sessions at least
HOPELESS = 0.1  # a cell may leave if it would pass less often than this, its step being as long as the base's
SHARED_DF = 2  # what all cells show of the scatter of windows counts as so many degrees of freedom of a cell's own
BETWEEN = 0.005  # SD between sessions that is assumed at least, as on machines at rest

Key = TypeVar("Key")


@dataclass(frozen=True)
class SessionPlan:
    """How many sessions a run has, and how long one may take.

    Attributes:
        budget: of the run.
        least: sessions that any decision takes; 0 where nothing is compared.
        profile: of the run.
        exactly: the sessions of a calibration; 0 in a run that judges.
    """

    budget: Budget
    least: int
    profile: str
    exactly: int = 0

    @property
    def keeps_budget(self) -> bool:
        """Whether the budget is kept even if sessions take longer than planned."""
        return self.budget.fixed and not self.exactly

    def sessions(self, affordable: float) -> int:
        """Return how many sessions there are, where the budget allows `affordable`."""
        stretched = 0 if self.keeps_budget else self.least
        sessions = max(self.budget.least_sessions, int(affordable), stretched)
        return sessions if self.least else min(sessions, MAX_SESSIONS[self.profile])

    def of_figures(self, affordable: float) -> int:
        """Return how many of these also time what figures need beside the comparison."""
        sessions = self.sessions(affordable)
        return min(max(1, sessions // ONE_IN), FIRST_LOOK) if self.least else sessions

    def share_s(self, left_s: float, to_come: int) -> float:
        """Return how long a session may take where cells are compared: its share of what is left; 0 for no more.

        When cells have been decided or have left, the sessions that were planned for all take less time. The rest of it
        is for more rounds of the others. A calibration has sessions that are alike.
        """
        return 0.0 if self.exactly or not self.least or to_come <= 0 else left_s / to_come


class Price(NamedTuple):
    """What the rest of a budget buys: so many sessions, each of so many rounds."""

    sessions: int
    rounds: int


@dataclass(frozen=True)
class Scatter:
    """By how much the sessions of a cell scatter.

    Attributes:
        within: variance of a session's ln(t_candidate / t_base) that its windows explain.
        between: variance that they do not explain.
        rounds: that a session had.
        sessions: that have ended.
    """

    within: float
    between: float
    rounds: float
    sessions: int

    def passes(self, price: Price, margin: float) -> float:
        """Return how probable it is that a cell passes after these sessions, if its step is as long as the base's."""
        n = self.sessions + price.sessions
        return self._passes(n, self._error(n, price.rounds), margin)

    def needed(self, rounds: int, margin: float) -> int | None:
        """Return after how many sessions of so many rounds it would more probably pass than not; None for never."""
        return observations_needed(self.sessions, lambda n: self._passes(n, self._error(n, rounds), margin) >= 0.5)

    def _error(self, n: int, rounds: int) -> float:
        later = self.between + self.within * self.rounds / rounds
        seen = self.sessions * (self.between + self.within)
        return math.sqrt(seen + (n - self.sessions) * later) / n

    @staticmethod
    def _passes(n: int, error: float, margin: float) -> float:
        half = t_quantile(n - 1 + MOST_DF, 1 - ALPHA_PASS * spending(max(n, FIRST_LOOK), n)) * error
        return NormalDist().cdf(min(margin - half, margin / 2) / error)


def scatters(middles: Mapping[Key, Sequence[Middle]], rounds: float) -> dict[Key, Scatter]:
    """Return by how much the sessions of each cell scatter.

    What sessions add to the noise of windows is taken from all cells together, because two sessions of one cell show
    next to nothing of it. What windows show of a cell is moved towards what they show of all.

    Args:
        middles: of each cell, what its sessions have shown; from one window a session nothing is known.
        rounds: of these sessions.
    """
    seen = {key: [(m.variance, m.df) for m in each if m.variance and m.df] for key, each in middles.items()}
    known = {key: (fmean(v for v, _ in each), sum(df for _, df in each)) for key, each in seen.items() if each}
    if not known:
        return {}
    usual = geometric_mean(own for own, _ in known.values())
    within = {key: (df * own + SHARED_DF * usual) / (df + SHARED_DF) for key, (own, df) in known.items()}
    # What two sessions show of a variance is as uncertain as it is large, so that quiet cells count most.
    several = [key for key in known if len(middles[key]) > 1]
    weights = {key: within[key] ** -2 for key in several}
    values = {key: [middle.value for middle in middles[key]] for key in several}
    excess = math.fsum(weights[key] * (variance(values[key]) - within[key]) for key in several)
    between = max(BETWEEN**2, excess / math.fsum(weights.values()) if several else 0.0)
    return {key: Scatter(within[key], between, rounds, len(middles[key])) for key in known}


def leaving(
    known: Mapping[Key, Scatter], stay: Collection[Key], price: Callable[[Sequence[Key]], Price], margin: float
) -> list[Key]:
    """Return the cells that leave their time to others: the noisiest, as many as let most cells be decided.

    Args:
        known: by how much the sessions of each cell scatter, in the order of the plan.
        stay: cells that do not leave.
        price: returns what the rest of the budget buys for some of the cells.
        margin: ln(1 + m).
    """
    everything = price(list(known))
    passes = {key: scatter.passes(everything, margin) for key, scatter in known.items()}
    hopeless = [key for key in known if key not in stay and passes[key] < HOPELESS]
    hopeless.sort(key=passes.__getitem__)
    best, gone = math.fsum(passes.values()), list[Key]()
    for count in range(1, len(hopeless) + 1):
        kept = [key for key in known if key not in hopeless[:count]]
        if not kept:
            break
        bought = price(kept)
        expected = math.fsum(known[key].passes(bought, margin) for key in kept)
        if expected > best:
            best, gone = expected, hopeless[:count]
    return gone
