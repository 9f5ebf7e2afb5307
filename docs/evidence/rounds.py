"""How many rounds should a session have? From logs of runs of one cell before ADR 0051, without a neighbour.

    python -m docs.evidence.rounds docs/evidence/field-0047.jsonl docs/evidence/field-0048.jsonl
    python -m docs.evidence.rounds --plans docs/evidence/field-0047.jsonl docs/evidence/field-0048.jsonl

The first prints the SD of a session's middle where so many of its rounds are drawn at random, around the slowdown that
was planted. If rounds explained it all, the SD would fall with the root of their number. The second draws whole runs
that are 10 % slower, of so many sessions with so many rounds, and prints the share that fails (docs/adr/0048).
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from docs.evidence.log import Line, read_log
from docs.evidence.recording import middle_of
from suite.verdict import FIRST_LOOK, Outcome, paired
from suite.verdict.metrics import location

DRAWN = (4, 6, 8, 10)  # rounds; sessions with fewer than the most are left out
DRAWS = 5  # of each session
PLANS = ((10,) * 4, (8,) * 4, (6,) * 4, (6,) * 5, (4,) * 5, (6,) * 6, (4,) * 6)
SLOWER = math.log(1.1)
RUNS = 4000


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


def found(kept: Sequence[Sequence[float]], plan: Sequence[int], runs: int) -> float:
    """Return the share of runs that FAIL at 10 %, with `plan` rounds in their sessions, drawn from recorded ones."""
    rng, failed = random.Random(1), 0
    fitting = [rounds for rounds in kept if len(rounds) >= max(plan)]
    for _ in range(runs):
        drawn = [middle_of([value + SLOWER for value in rng.sample(rng.choice(fitting), count)]) for count in plan]
        looks = (paired(drawn[:n], 0.05, 1, len(plan), 1.0).outcome for n in range(FIRST_LOOK, len(plan) + 1))
        decided = next((outcome for outcome in looks if outcome is not Outcome.INCONCLUSIVE), None)
        failed += decided is Outcome.FAIL
    return failed / runs


def plans(lines: Sequence[Line]) -> str:
    """Return the table of `PLANS`."""
    kept = sessions(lines)
    rows = [f"| {len(plan)} | {plan[0]} | {sum(plan)} | {found(kept, plan, RUNS):.1%} |" for plan in PLANS]
    return "\n".join(["| sessions | rounds in each | in all | FAIL at 10 % |", "|---|---|---|---|", *rows])


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
    parser.add_argument("--plans", action="store_true", help="print how often plans find a slowdown of 10 %%")
    asked = parser.parse_args()
    lines = [line for path in asked.logs for line in read_log(path)]
    if asked.plans:
        print(plans(lines))
        return
    print(f"| sessions | a round | {' | '.join(f'{count} rounds' for count in DRAWN)} |")
    print("|" + "---|" * (2 + len(DRAWN)))
    print(row(lines))


if __name__ == "__main__":
    main()
