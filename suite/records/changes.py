"""Find the runs at which a series of times changed its level, with a stated error rate. Pure.

If nothing changed, the runs of one host could have come in any order, so the strongest contrast of the real order is
compared with those of shuffled ones: a permutation test, exact for any distribution of the noise. A change also has to
be beyond what runs that resemble the ones before them show (`suite.records.neighbours`). Of series that never changed
level, a share of `ALPHA` at most has any mark, with an autocorrelation from run to run of up to .6.

- The contrast is between the runs from i to j and all others, as in circular binary segmentation (Olshen et al. 2004,
  Biostatistics 5, 557): a slowdown that was repaired after a while is found as well as one that stayed.
- Times count by their ranks, as normal scores (van der Waerden), so that a disturbed run counts as one slow run,
  however slow it was.
- Hosts of one machine key have levels of their own. Runs are compared and shuffled within hosts; where one host
  replaced another nothing is marked, because host and code cannot be told apart there.
- A series is split at its mark and each part is tested again. The split was chosen from the data, so a part that did
  not change has a further mark a little more often than a series of its own (docs/history.md).

Not covered: the cause, which may be the machine or the build. A slow drift has no single run at which it happened and
is marked in steps. docs/history.md has the simulated figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from suite.records import neighbours
from suite.records.neighbours import Floats, Labels

ALPHA = 0.01
MIN_STRETCH = 3  # runs; one or two are outliers
# Two perfectly separated halves of ten runs have a probability of 2 in C(10, 5) = 252 by chance, which is below ALPHA;
# no order of nine runs is.
MIN_RUNS = 10
SHUFFLES = 999
_BATCH = 111  # of shuffles; enough to dismiss most series


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
    """Return the changes of level in a series, oldest first.

    Args:
        logs: ln of each run's time, in the order of the runs.
        hosts: where each of them ran.

    Raises:
        ValueError: not as many hosts as times.
    """
    if len(logs) != len(hosts):
        raise ValueError(f"{len(logs)} times and {len(hosts)} hosts: each run needs one of both")
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
        prices: subtracted. A stretch that reaches neither end of the series has one more edge to choose, for which BIC
            subtracts ln n from a contrast.
    """

    starts: Labels
    ends: Labels
    weights: Floats
    prices: Floats

    @classmethod
    def of(cls, hosts: Labels) -> _Candidates:
        """Return the stretches of a series that leave `MIN_STRETCH` runs on both sides, also within hosts."""
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
        """Return each stretch's distance from the rest, about a chi-square of one df, for every row of `scores`."""
        sums = np.concatenate((np.zeros((len(scores), 1)), np.cumsum(scores, axis=1)), axis=1)
        contrasts: Floats = (sums[:, self.ends] - sums[:, self.starts]) ** 2 * self.weights - self.prices
        return contrasts


def _cut(logs: Floats, hosts: Labels) -> int | None:
    """Return where a series divides best; None where its order may be chance."""
    if len(logs) < MIN_RUNS:
        return None
    scores, candidates = _scores(logs, hosts), _Candidates.of(hosts)
    if not scores.any() or not len(candidates.starts):
        return None
    contrasts = candidates.contrasts(scores[None, :])[0]
    best = int(contrasts.argmax())
    if not _beyond_chance(float(contrasts[best]), scores, hosts, candidates):
        return None
    if neighbours.explain(logs, hosts, candidates.starts, candidates.ends, candidates.prices):
        return None
    # Of a stretch with two edges the clearer one is marked; the other has to show itself in what is left.
    edges = (int(edge) for edge in (candidates.starts[best], candidates.ends[best]) if 0 < edge < len(logs))
    pieces = [0, *edges, len(logs)]
    around = zip(pieces, pieces[1:], pieces[2:], strict=False)
    return max(around, key=lambda piece: _clearness(logs, hosts, *piece))[1]


def _beyond_chance(observed: float, scores: Floats, hosts: Labels, candidates: _Candidates) -> bool:
    """Return whether at most a share of `ALPHA` of the shuffled series, this one included, reach as high a contrast.

    Shuffling ends early when the answer is known. It is seeded by the series' own order: the same series has the same
    marks on every page, and different series have different shuffles.
    """
    rng = np.random.default_rng(np.argsort(scores, kind="stable"))
    reached = 0
    for _ in range(SHUFFLES // _BATCH):
        highest = candidates.contrasts(neighbours.shuffled(scores, hosts, _BATCH, rng)).max(axis=1)
        reached += int(np.count_nonzero(highest >= observed - 1e-9))  # equal but for rounding is equal
        if (reached + 1) / (SHUFFLES + 1) > ALPHA:
            return False
    return True


def _scores(logs: Floats, hosts: Labels) -> Floats:
    """Return normal scores of each run's distance from its host's median, centred by host, of mean square 1.

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
    """Return the contrast of the runs before a cut with those after it."""
    scores, candidates = _scores(logs[start:end], hosts[start:end]), _Candidates.of(hosts[start:end])
    here = (candidates.starts == 0) & (candidates.ends == cut - start)
    return float(candidates.contrasts(scores[None, :])[0][here].sum())  # none where hosts hide it


def _shift(logs: Floats, hosts: Labels, start: int, cut: int, end: int) -> float:
    """Return the median difference of a run after and one before, of one host (Hodges and Lehmann 1963)."""
    pairs = logs[cut:end, None] - logs[None, start:cut]
    alike = hosts[cut:end, None] == hosts[None, start:cut]
    return float(np.median(pairs[alike] if alike.any() else pairs))
