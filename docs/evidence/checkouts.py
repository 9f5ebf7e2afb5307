"""Does a checkout favour one side for a whole run? From recorded runs of the same code in two of them.

    python -m docs.evidence.checkouts

prints a table of docs/evidence/verdict.md. In every run of the log the candidate was in a clone and the base in another
checkout, at paths of random and different lengths. A bias that stays for a run makes runs scatter more than what is
seen within them explains: their sessions, or their trainers on one device, which are all timed in both checkouts. The
rest of the variance between runs is the bias's, of the trainers the part that they share.

Of one cell as many sessions count as the shortest run has, because the length of a run depends on what it showed. The
default cells have only their final ratios in the log.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scipy import stats

from docs.evidence.log import Line, read_log
from suite.verdict.metrics import location, mean_and_standard_error, t_quantile, variance

LOG = Path(__file__).with_name("field.jsonl")
ON_ONE = "-strong-1"  # how the ids of cells on one device end; weak scaling has the same processes there
CONFIDENCE = 0.95


class Bias(NamedTuple):
    """What runs show of a bias, as logarithms of the ratio of both sides.

    Attributes:
        mean, half: of all runs, and half of its 95 % interval.
        sd: the SD of the bias over runs; 0 where runs scatter less than within them explains.
        most: its upper limit, one-sided 95 %.
    """

    mean: float
    half: float
    sd: float
    most: float


def bias(runs: Sequence[Sequence[float]]) -> Bias:
    """Return the bias that each run has for itself, from equally many values of every run (one-way random effects)."""
    size, means = len(runs[0]), [statistics.fmean(values) for values in runs]
    within = statistics.fmean(map(variance, runs)) / size
    mean, error = mean_and_standard_error(means)
    ratio = variance(means) / within
    least = float(stats.f.ppf(1 - CONFIDENCE, len(runs) - 1, len(runs) * (size - 1)))
    sd, most = (math.sqrt(max(0.0, each - 1) * within) for each in (ratio, ratio / least))
    return Bias(mean, t_quantile(len(runs) - 1, (1 + CONFIDENCE) / 2) * error, sd, most)


def on_several(lines: Sequence[Line]) -> list[list[float]]:
    """Return the first sessions of every run of one cell on two devices."""
    of_runs = [line["log_ratios_1e4"] for line in lines if line["kind"] == "checkout"]
    fewest = min(map(len, of_runs))
    return [[location(rounds) / 1e4 for rounds in sessions[:fewest]] for sessions in of_runs]


def on_one(lines: Sequence[Line]) -> list[list[float]]:
    """Return each trainer's ratio on one device in every default run."""
    of_runs = [line["cells"] for line in lines if line["kind"] == "matrix"]
    known = [
        [math.log(ratio[0]) for name, (_, ratio) in cells.items() if ratio and name.endswith(ON_ONE)]
        for cells in of_runs
    ]
    most = max(map(len, known))
    return [values for values in known if len(values) == most]


def main() -> None:
    """Print the table."""
    lines = read_log(LOG)
    print("| runs of the same code | neighbour | runs | mean | SD of the bias | at most |\n|---|---|---|---|---|---|")
    for name, values in (("one cell on two devices", on_several), ("default cells on one device", on_one)):
        for busy in (False, True):
            runs = values([line for line in lines if line["neighbour"] == busy])
            found = bias(runs)
            row = [name, "yes" if busy else "no", str(len(runs)), f"{found.mean:+.2%} ± {found.half:.2%}"]
            print(f"| {' | '.join([*row, f'{found.sd:.2%}', f'{found.most:.2%}'])} |")


if __name__ == "__main__":
    main()
