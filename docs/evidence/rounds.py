"""Do sessions of one cell differ by more than their rounds explain? From logs of `docs.evidence.runs`.

    python -m docs.evidence.rounds docs/evidence/field-0047.jsonl docs/evidence/field-0048.jsonl

prints the SD of a session's middle where so many of its rounds are drawn at random, around the slowdown that was
planted, for runs without a neighbour. If rounds explained it all, the SD would fall with the root of their number
(docs/verdict.md, "Rounds per session").
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from docs.evidence.log import Line, read_log
from suite.verdict.metrics import location

DRAWN = (4, 6, 8, 10)  # rounds; sessions with fewer than the most are left out
DRAWS = 5  # of each session


def sessions(lines: Sequence[Line]) -> list[list[float]]:
    """Return the rounds of every session that has enough, less what was planted: ln(t_candidate / t_base)."""
    of_one_cell = [line for line in lines if "log_ratios_1e4" in line and not line.get("neighbour")]
    return [
        [value / 1e4 - math.log1p(line["planted"]) for value in rounds]
        for line in of_one_cell
        for rounds in line["log_ratios_1e4"]
        if len(rounds) >= max(DRAWN)
    ]


def root_mean_square(values: Sequence[float]) -> float:
    """Return the SD around 0."""
    return math.sqrt(fmean(value**2 for value in values))


def row(lines: Sequence[Line]) -> str:
    """Return a row of the table over these runs."""
    rng, kept = random.Random(1), sessions(lines)
    drawn = [
        root_mean_square([location(rng.sample(rounds, count)) for rounds in kept for _ in range(DRAWS)])
        for count in DRAWN
    ]
    single = root_mean_square([value for rounds in kept for value in rounds])
    return f"| {len(kept)} | {single:.1%} | {' | '.join(f'{sd:.1%}' for sd in drawn)} |"


def main() -> None:
    """Print the table, a row for all logs together."""
    parser = argparse.ArgumentParser(description="SD of sessions by their number of rounds, from logs of runs.")
    parser.add_argument("logs", type=Path, nargs="+", help="logs of runs of one cell")
    lines = [line for path in parser.parse_args().logs for line in read_log(path)]
    print(f"| sessions | a round | {' | '.join(f'{count} rounds' for count in DRAWN)} |")
    print("|" + "---|" * (2 + len(DRAWN)))
    print(row(lines))


if __name__ == "__main__":
    main()
