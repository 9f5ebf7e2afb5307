"""Whether a change of level in a series is no more than runs which resemble the ones before them can show. Pure.

A machine that is slow tonight is often slow tomorrow: a first-order autoregressive series, in which each run keeps a
share phi of what the one before it was off its level. Such a series wanders, and looks like one with levels. A change
counts only if it is beyond that for any phi up to `MOST`:

- Two models are fitted, both with the phi of `STRENGTHS` that fits best: one level, and one level with another in the
  stretch of runs that fits best. The gain is twice the log of their ratio of likelihoods, given each host's first run.
- The gain is compared with those of series drawn for phi = `MOST`: the innovations of this series, what a run is above
  that share of the one before it, in another order. A smaller phi gives smaller gains.
- Before that, a run further from the median of five around it than `CAP` times the usual is moved there, so that a
  disturbed run counts as one slow run. A capped series is not quite autoregressive, so that the test's level is half of
  the rate that is promised: none of `SHUFFLES` may reach the gain.

docs/history.md has the simulated rates and what power this costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST = 0.6
STRENGTHS = (0.0, 0.15, 0.3, 0.45, MOST)
SHUFFLES = 199  # one in 200 of series that never changed has a gain above all of them
CAP = 5.0  # of the median distance from the middle of five runs, scaled as for a normal distribution
_BATCH = 50
_NORMAL = 1.4826  # a normal distribution's SD over its median distance from the middle

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.intp]


def explain(logs: Floats, hosts: Labels, starts: Labels, ends: Labels, prices: Floats) -> bool:
    """Return whether the clearest stretch of a series is no clearer than those of series that wander.

    Args:
        logs, hosts: of each run, shape (runs,).
        starts, ends: of the stretches that may have a level of their own, shape (stretches,).
        prices: subtracted from the gain of each stretch, shape (stretches,).
    """
    series = _capped(logs, hosts)
    before = _before(hosts)
    fits = _Fits.of(hosts, before, starts, ends, prices)
    observed = fits.gains(series[None, :])[0]
    rng = np.random.default_rng(np.argsort(series, kind="stable"))
    for _ in range(-(-SHUFFLES // _BATCH)):
        if (fits.gains(_wandering(series, hosts, before, rng)) >= observed - 1e-9).any():
            return True
    return False


def _before(hosts: Labels) -> Labels:
    """Return the index of the run before each on its host; -1 for a host's first."""
    before = np.full(len(hosts), -1, dtype=np.intp)
    for host in np.unique(hosts):
        here = np.flatnonzero(hosts == host)
        before[here[1:]] = here[:-1]
    return before


def _wandering(series: Floats, hosts: Labels, before: Labels, rng: np.random.Generator) -> Floats:
    """Return `_BATCH` series with the innovations of this one at phi = `MOST`, shuffled within hosts."""
    innovations = series - MOST * series[before]
    drawn, later = np.tile(series, (_BATCH, 1)), np.flatnonzero(before >= 0)
    drawn[:, later] = shuffled(innovations[later], hosts[later], _BATCH, rng)
    for run in later:
        drawn[:, run] += MOST * drawn[:, before[run]]
    return drawn


def shuffled(values: Floats, hosts: Labels, count: int, rng: np.random.Generator) -> Floats:
    """Return so many series of these values, each in another order within hosts, shape (count, runs)."""
    drawn = np.empty((count, len(values)))
    for host in np.unique(hosts):
        here = np.flatnonzero(hosts == host)
        drawn[:, here] = rng.permuted(np.tile(values[here], (count, 1)), axis=1)
    return drawn


def _capped(logs: Floats, hosts: Labels) -> Floats:
    """Return the series with outliers moved to `CAP` times the usual distance from the median of five runs."""
    capped = logs.copy()
    for host in np.unique(hosts):
        here = np.flatnonzero(hosts == host)
        values = logs[here]
        middles = np.array([np.median(values[max(0, run - 2) : run + 3]) for run in range(len(values))])
        most = CAP * _NORMAL * np.median(np.abs(values - middles))
        capped[here] = middles + np.clip(values - middles, -most, most)
    return capped


@dataclass(frozen=True)
class _Fits:
    """Both models for every phi of `STRENGTHS`, by least squares.

    Attributes:
        forms: for each phi a matrix Q, so that x'Qx is the sum of squares of x around one level a host.
        sizes: for each phi z'Qz of every stretch z (1 inside, 0 outside), shape (stretches,).
        degrees: runs that have one before them.
    """

    forms: tuple[Floats, ...]
    sizes: tuple[Floats, ...]
    starts: Labels
    ends: Labels
    prices: Floats
    degrees: int

    @classmethod
    def of(cls, hosts: Labels, before: Labels, starts: Labels, ends: Labels, prices: Floats) -> _Fits:
        later = np.flatnonzero(before >= 0)
        forms, sizes = list[Floats](), list[Floats]()
        for phi in STRENGTHS:
            steps = np.zeros((len(later), len(before)))
            steps[np.arange(len(later)), later] = 1.0
            steps[np.arange(len(later)), before[later]] -= phi
            for host in np.unique(hosts[later]):
                here = hosts[later] == host
                steps[here] -= steps[here].mean(axis=0)
            form = steps.T @ steps
            sums = np.zeros((len(before) + 1, len(before) + 1))
            sums[1:, 1:] = form.cumsum(axis=0).cumsum(axis=1)
            forms.append(form)
            size = sums[ends, ends] - sums[starts, ends] - sums[ends, starts] + sums[starts, starts]
            sizes.append(np.where(size > 1e-9, size, np.inf))  # of hosts' first runs alone nothing is known
        return cls(tuple(forms), tuple(sizes), starts, ends, prices, len(later))

    def gains(self, series: Floats) -> Floats:
        """Return what a stretch with a level of its own gains at most, for every row of `series`."""
        plain, stepped = np.full(len(series), np.inf), dict[float, Floats]()
        for form, size in zip(self.forms, self.sizes, strict=True):
            moved = series @ form
            squares = (moved * series).sum(axis=1)
            plain = np.minimum(plain, squares)
            sums = np.concatenate((np.zeros((len(series), 1)), np.cumsum(moved, axis=1)), axis=1)
            explained = (sums[:, self.ends] - sums[:, self.starts]) ** 2 / size
            for price in np.unique(self.prices):
                left = squares - explained[:, self.prices == price].max(axis=1)
                stepped[price] = np.minimum(stepped.get(price, np.inf), left)
        least = 1e-12 * plain + 1e-300
        gains = [self.degrees * np.log(plain / np.maximum(left, least)) - price for price, left in stepped.items()]
        highest: Floats = np.max(gains, axis=0)
        return highest
