"""Recorded runs of one cell, judged again with the error spent in other ways over the looks.

    python -m docs.evidence.spending
    python -m docs.evidence.spending --simulated

The runs are those of `field.jsonl` without a neighbour, with all their rounds (a run leaves disturbed ones out), as
they are and with a slowdown added to every round. A run that had ended before a decision is not decided.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from docs.evidence import family
from docs.evidence.log import Line, read_log
from docs.evidence.recording import middle_of
from suite.verdict import FIRST_LOOK, Outcome

LOG = Path(__file__).with_name("field.jsonl")
SLOWDOWNS = (0.0, 0.05, 0.10)
SECONDS = (30, 45, 60)
paired = importlib.import_module("suite.verdict.paired")  # its package has a function of the same name

QUIET, LOUD = 0.012, 0.05  # SDs of a session's middle in a simulated matrix, on one device and on two

Spending = Callable[[int, int, int], float]


def of_power(power: float) -> Spending:
    """Return a spending function whose cumulative share is this power of the sessions, however many are planned."""

    def spending(sessions: int, planned: int, first: int = FIRST_LOOK) -> float:
        before = 0 if sessions == first else sessions - 1
        return float((sessions / planned) ** power - (before / planned) ** power) if first <= sessions <= planned else 0

    return spending


RULES: dict[str, Spending] = {
    "power 3, as before": of_power(3),
    "**chosen**": paired.spending,
    "power 1": of_power(1),
}


def decided(line: Line, slowdown: float) -> tuple[Outcome, int, float]:
    """Return the outcome of a run that is slowed down, after how many of its sessions, and after how many seconds."""
    middles = [middle_of([each / 1e4 + math.log1p(slowdown) for each in rounds]) for rounds in line["log_ratios_1e4"]]
    outcome, sessions = Outcome.INCONCLUSIVE, len(middles)
    for sessions in range(FIRST_LOOK, len(middles) + 1):
        outcome = paired.paired(middles[:sessions], line["tolerance"], 1, line["planned"], 1.0).outcome
        if outcome is not Outcome.INCONCLUSIVE:
            break
    return outcome, sessions, line["wall_s"] - math.fsum(line["session_s"][sessions:])


def table(lines: Sequence[Line]) -> str:
    """Return a row of Markdown for each way and slowdown."""
    head = ["error spent", "slowdown", "runs", "FAIL", "PASS", "median sessions"]
    head += [f"decided within {seconds} s" for seconds in SECONDS]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *_rows(lines)])


def _rows(lines: Sequence[Line]) -> Iterable[list[object]]:
    for slowdown in SLOWDOWNS:
        for name, spending in RULES.items():
            setattr(paired, "spending", spending)  # noqa: B010 - no attribute of a module that mypy knows
            ends = [decided(line, slowdown) for line in lines]
            outcomes = [outcome for outcome, *_ in ends]
            in_time = [
                sum(taken_s <= seconds for outcome, _, taken_s in ends if outcome is not Outcome.INCONCLUSIVE)
                for seconds in SECONDS
            ]
            median = statistics.median(sessions for _, sessions, _ in ends)
            counts = [outcomes.count(outcome) for outcome in (Outcome.FAIL, Outcome.PASS)]
            yield [name, f"{slowdown:.0%}", len(lines), *counts, median, *in_time]


def simulated(runs: int = 4000) -> str:
    """Return what powers do where few sessions are planned, and where many are that are hardly enough."""
    head = [
        "power",
        "36 planned, SD .06: FAIL at 5 %",
        "matrix of six, SD .05: PASS",
        "one cell, stale calibration: wrong PASS",
    ]
    rows = [head, ["---"] * len(head)]
    [stale] = [row for row in family.FAMILY if row.name == "one cell, stale calibration: .3 %, now modes with p = .5"]
    scatter = np.where(np.arange(family.CELLS) % family.SIZES, LOUD, QUIET)[:, None, None]
    for power in (1.0, 1.5, 3.0, 4.0, 5.0, 8.0):
        family.spending = of_power(power)
        rng = np.random.default_rng(1)
        many = family.decide(family.slowed(family.normal(0.0, 0.06)(rng, (runs, 1, 36, 4)), family.MARGIN), 1, 1)
        few = family.decide(
            family.normal(0.0, 1.0)(rng, (runs, family.CELLS, family.SESSIONS, 4)) * scatter, family.SIZES, family.CELLS
        )
        passes, fails = map(family.OUTCOMES.index, (Outcome.PASS, Outcome.FAIL))
        found, passed = (many == fails).mean(), (few[:, 1 :: family.SIZES] == passes).mean()
        wrong = family.rates(stale, runs)
        rows.append([f"{power:g}", f"{found:.2f}", f"{passed:.2f}", f"{wrong.wrong_pass / wrong.slower:.1%}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulated", action="store_true", help="simulate instead, with one power at a time")
    lines = [line for line in read_log(LOG) if line["kind"] == "checkout" and not line["neighbour"]]
    print(simulated() if parser.parse_args().simulated else table(lines))
