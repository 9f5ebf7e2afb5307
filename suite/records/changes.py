"""At which run a series of times changed its level: marks for a history, with a stated error rate. Pure.

The question is asked of the order alone. If nothing changed, the runs of one host could have come in any order, so the
strongest contrast of the real order is held against those of shuffled ones: a permutation test, exact whatever the
noise is distributed like. Of a series that never changed level, a share of `ALPHA` at most has any mark.

- The contrast is between the runs from i to j and all others, as in circular binary segmentation (Olshen et al. 2004,
  Biostatistics 5, 557): a slowdown that was repaired after a while is found as well as one that stayed.
- Times count by their ranks, as normal scores (van der Waerden), so that a run which was disturbed counts as one slow
  run, however slow it was.
- Hosts of one machine key have levels of their own. Runs are compared within hosts and shuffled within hosts; where a
  host came and another went nothing is said, because host and code cannot be told apart there.
- A series is split at its mark and each part is asked again, so a part that did not change gets a further mark with
  probability `ALPHA` at most.

Not covered: why. A machine that grew slower is marked as surely as a build that did. And a slow drift has no run at
which it happened: it is marked in steps. docs/history.md has the simulated figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

ALPHA = 0.01
MIN_STRETCH = 3  # runs: one or two that stand out are outliers, a level needs more
# Perfectly sorted into two halves, ten runs come in 2 of C(10, 5) = 252 arrangements, which is below ALPHA; nine do
# not get there in any order.
MIN_RUNS = 10
SHUFFLES = 999
_BATCH = 111  # most series show within so few that they are nothing special

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Change:
    """A new level.

    Attributes:
        at: index of its first run; the true one is this or a neighbour.
        log_shift: ln(new level / old level): above 0 it became slower.
    """

    at: int
    log_shift: float


def find(logs: Sequence[float], hosts: Sequence[str]) -> list[Change]:
    """The changes of level in a series, oldest first.

    Args:
        logs: ln of each run's time, in the order of the runs.
        hosts: where each of them ran.

    Raises:
        ValueError: not as many hosts as times.
    """
    if len(logs) != len(hosts):
        raise ValueError(f"{len(logs)} times and {len(hosts)} hosts: each run has one of both")
    values = np.asarray(logs, dtype=np.float64)
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    labels = np.asarray([numbers[host] for host in hosts], dtype=np.intp)
    cuts = _cuts(values, labels)
    edges = [0, *cuts, len(values)]
    return [
        Change(cut, _shift(values, labels, start, cut, end))
        for start, cut, end in zip(edges, cuts, edges[2:], strict=False)
    ]


def _cuts(logs: Floats, hosts: Labels) -> list[int]:
    cut = _cut(logs, hosts)
    if cut is None:
        return []
    later = [cut + more for more in _cuts(logs[cut:], hosts[cut:])]
    return [*_cuts(logs[:cut], hosts[:cut]), cut, *later]


class _Candidates(NamedTuple):
    """Stretches from `starts` to `ends` that may have a level of their own.

    Attributes:
        weights: what the square of the scores' sum over the stretch is multiplied by. With m of a host's n runs inside,
            such a sum varies as m (1 - m / n): one over that, summed over hosts, makes lengths comparable.
        prices: taken off. A stretch that reaches neither end of the series has one edge more to choose, for which
            BIC asks ln n of a contrast: many more stretches would be as clear by chance.
    """

    starts: Labels
    ends: Labels
    weights: Floats
    prices: Floats

    @classmethod
    def of(cls, hosts: Labels) -> _Candidates:
        """Of a series: stretches that leave `MIN_STRETCH` runs on both sides, also within hosts."""
        n = len(hosts)
        spread, smaller = np.zeros((n + 1, n + 1)), np.zeros((n + 1, n + 1))
        for host in np.unique(hosts):
            seen = np.concatenate(([0], np.cumsum(hosts == host)))
            inside = seen[None, :] - seen[:, None]
            spread += inside * (1 - inside / seen[-1])
            smaller += np.minimum(inside, seen[-1] - inside)
        i, j = np.arange(n + 1)[:, None], np.arange(n + 1)[None, :]
        before, after = (i == 0) | (i >= MIN_STRETCH), (j == n) | (j <= n - MIN_STRETCH)
        starts, ends = np.nonzero((j - i >= MIN_STRETCH) & before & after & (smaller >= MIN_STRETCH))
        prices = np.where((starts > 0) & (ends < n), np.log(n), 0.0)
        return cls(starts, ends, 1 / spread[starts, ends], prices)

    def contrasts(self, scores: Floats) -> Floats:
        """Of each series (rows of `scores`) and stretch: how far it is from the rest; about a chi-square of one df."""
        sums = np.concatenate((np.zeros((len(scores), 1)), np.cumsum(scores, axis=1)), axis=1)
        contrasts: Floats = (sums[:, self.ends] - sums[:, self.starts]) ** 2 * self.weights - self.prices
        return contrasts


def _cut(logs: Floats, hosts: Labels) -> int | None:
    """Where a series divides best, if the order of its runs is not one of chance."""
    if len(logs) < MIN_RUNS:
        return None
    scores, candidates = _scores(logs, hosts), _Candidates.of(hosts)
    if not scores.any() or not len(candidates.starts):
        return None
    contrasts = candidates.contrasts(scores[None, :])[0]
    best = int(contrasts.argmax())
    if not _beyond_chance(float(contrasts[best]), scores, hosts, candidates):
        return None
    # Of a stretch with two edges only the clearer one is sure; the other has to show itself in what is left.
    edges = (int(edge) for edge in (candidates.starts[best], candidates.ends[best]) if 0 < edge < len(logs))
    pieces = [0, *edges, len(logs)]
    around = zip(pieces, pieces[1:], pieces[2:], strict=False)
    return max(around, key=lambda piece: _clearness(logs, hosts, *piece))[1]


def _beyond_chance(observed: float, scores: Floats, hosts: Labels, candidates: _Candidates) -> bool:
    """Whether at most a share of `ALPHA` of the shuffled series, this one counted, reach as high a contrast.

    Shuffling ends when the answer is sure, which changes no answer. It is seeded by the series' own order: the same
    series has the same marks on every page, and an unlucky set of shuffles is not every series' own.
    """
    rng = np.random.default_rng(np.argsort(scores, kind="stable"))
    reached = 0
    for _ in range(SHUFFLES // _BATCH):
        shuffled = np.empty((_BATCH, len(scores)))
        for host in np.unique(hosts):
            here = np.flatnonzero(hosts == host)
            shuffled[:, here] = rng.permuted(np.tile(scores[here], (_BATCH, 1)), axis=1)
        highest = candidates.contrasts(shuffled).max(axis=1)
        reached += int(np.count_nonzero(highest >= observed - 1e-9))  # equal but for rounding is equal
        if (reached + 1) / (SHUFFLES + 1) > ALPHA:
            return False
    return True


def _scores(logs: Floats, hosts: Labels) -> Floats:
    """Normal scores of what each run is above its host's median, less the host's mean, of mean square 1.

    Equal values share the middle of their ranks. Shuffling within hosts leaves medians and means as they are, so it
    shuffles these scores. All 0 where nothing differs within hosts.
    """
    above = logs.copy()
    for host in np.unique(hosts):
        above[hosts == host] -= np.median(logs[hosts == host])
    _, inverse, counts = np.unique(above, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    scores: Floats = ndtri(ranks / (len(ranks) + 1))
    for host in np.unique(hosts):
        scores[hosts == host] -= scores[hosts == host].mean()
    size = float(np.sqrt(np.mean(scores**2)))
    return scores / size if size > 1e-9 else np.zeros_like(scores)


def _clearness(logs: Floats, hosts: Labels, start: int, cut: int, end: int) -> float:
    """The contrast of the runs before a cut with those after it, of these runs alone."""
    scores, candidates = _scores(logs[start:end], hosts[start:end]), _Candidates.of(hosts[start:end])
    here = (candidates.starts == 0) & (candidates.ends == cut - start)
    return float(candidates.contrasts(scores[None, :])[0][here].sum())  # none where hosts hide it


def _shift(logs: Floats, hosts: Labels, start: int, cut: int, end: int) -> float:
    """The median of all differences between a run after and one before, of the same host (Hodges and Lehmann 1963)."""
    pairs = logs[cut:end, None] - logs[None, start:cut]
    alike = hosts[cut:end, None] == hosts[None, start:cut]
    return float(np.median(pairs[alike] if alike.any() else pairs))
