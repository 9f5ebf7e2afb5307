"""How often a whole bisection is wrong, has no answer, and how many runs it takes: `python -m docs.evidence.bisection`.

Simulated, seeded, through the rule that judges a run; a few minutes of one core. docs/bisect.md has its table. "Before"
is a search whose runs do not share their error probabilities, with nothing verified.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from suite.cli import bisection
from suite.cli.bisection import BAD, GOOD, SKIP
from suite.cli.command import Stop
from suite.verdict import Middle, Outcome, Windows, paired

TOLERANCE = 0.05
MARGIN = np.log1p(TOLERANCE)
ROUNDS, SESSION_S = 8, 15.0
STATUS = {Outcome.PASS: GOOD, Outcome.FAIL: BAD, Outcome.INCONCLUSIVE: SKIP}

Came = Literal["right", "wrong", "none"]
Judge = Callable[[float, int], int]  # how much slower a commit is (log), and how many runs share the errors
Spread = Callable[[np.random.Generator, int], np.ndarray]  # what each of so many sessions adds

SLOW_MODES = "modes: 6 % slower with p = .5"
SPREADS: dict[str, Spread] = {
    "sessions 1 %": lambda rng, sessions: rng.normal(0, 0.01, sessions),
    "sessions 3 %": lambda rng, sessions: rng.normal(0, 0.03, sessions),
    SLOW_MODES: lambda rng, sessions: 0.06 * (rng.integers(2, size=sessions) - rng.integers(2, size=sessions)),
}
ROWS = (  # a noise, planned sessions, commits, and by how much the slow ones are slower
    ("sessions 1 %", 8, 10, 0.05),
    ("sessions 1 %", 8, 100, 0.05),
    ("sessions 1 %", 8, 100, 0.10),
    ("sessions 1 %", 8, 1000, 0.10),
    ("sessions 3 %", 8, 100, 0.10),
    ("sessions 3 %", 24, 100, 0.10),
    (SLOW_MODES, 8, 100, 0.10),
    (SLOW_MODES, 24, 100, 0.10),
    (SLOW_MODES, 48, 100, 0.10),
)


class Line:
    """A history without merges, searched by halves.

    Args:
        deltas: by how much each commit is slower than the good one before them (log), the bad end last.
    """

    good = "-1"

    def __init__(self, deltas: Sequence[float]) -> None:
        self.bad = str(len(deltas) - 1)
        self.deltas = {self.good: 0.0, **{str(number): delta for number, delta in enumerate(deltas)}}
        self._low, self._high = -1, len(deltas) - 1
        self._skipped: set[int] = set()

    def left(self) -> list[str]:
        """Return the commits that may be the first bad one."""
        return [str(number) for number in range(self._high, self._low, -1)]

    def next(self) -> str | None:
        """Return the commit nearest to the middle that was not skipped."""
        middle = (self._low + self._high) // 2
        open_ = [number for number in range(self._low + 1, self._high) if number not in self._skipped]
        return str(min(open_, key=lambda number: abs(number - middle))) if open_ else None

    def tell(self, commit: str, status: int) -> None:
        """Note what a commit is."""
        if status == BAD:
            self._high = int(commit)
        elif status == GOOD:
            self._low = int(commit)
        else:
            self._skipped.add(int(commit))

    def parent(self, commit: str) -> str:
        """Return the commit before."""
        return str(int(commit) - 1)

    def subject(self, commit: str) -> str:
        """Return nothing: there is no message."""
        return ""


def judge(rng: np.random.Generator, spread: Spread, planned: int, within: float = 0.03) -> Judge:
    """Return a measurement by the rule itself, of `planned` sessions drawn from a noise."""

    def measure(delta: float, runs: int) -> int:
        windows = within / math.sqrt(2) * rng.normal(size=(2, planned, ROUNDS))
        windows[0] += delta + spread(rng, planned)[:, None]
        middles = [Middle.of(Windows(own, base)) for own, base in zip(*windows.tolist(), strict=True)]
        return STATUS[paired(middles, TOLERANCE, runs, planned, SESSION_S, runs=runs).outcome]

    return measure


def whole(line: Line, judge: Judge) -> tuple[Came, int]:
    """Bisect a history as the suite does; return what came of it and how many runs it took."""
    taken = 0

    def measure(commit: str, runs: int) -> int:
        nonlocal taken
        taken += 1
        return judge(line.deltas[commit], runs)

    try:
        answer = bisection.find(line, measure, lambda text: None)
    except Stop:
        return "none", taken
    return came(line, answer), taken


def unshared(line: Line, judge: Judge) -> tuple[Came, int]:
    """Bisect as `git bisect run` does with runs that know nothing of each other."""
    taken = 0
    while (commit := line.next()) is not None:
        line.tell(commit, judge(line.deltas[commit], 1))
        taken += 1
    return came(line, line.left()[0]) if len(line.left()) == 1 else "none", taken


def came(line: Line, answer: str) -> Came:
    """Return whether an answer is one that docs/bisect.md promises."""
    wrong = line.deltas[answer] <= 0 or line.deltas[line.parent(answer)] >= MARGIN
    return "wrong" if wrong else "right"


def step(rng: np.random.Generator, commits: int, delta: float) -> Line:
    """Return a history with one slow commit, anywhere."""
    first = int(rng.integers(commits))
    return Line([delta if number >= first else 0.0 for number in range(commits)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bisections", type=int, default=1000, help="simulated for each row (default: 1000)")
    count = parser.parse_args().bisections
    titles = (
        "noise | sessions | commits | slower | wrong, before | wrong | no answer, before | no answer | runs, before"
    )
    print(f"| {titles} | runs |")
    print("|---" * 10 + "|")
    for name, planned, commits, slower in ROWS:
        ends: dict[str, list[tuple[Came, int]]] = {}
        for rule in (unshared, whole):
            rng = np.random.default_rng(commits)
            drawn = ((step(rng, commits, np.log1p(slower)), judge(rng, SPREADS[name], planned)) for _ in range(count))
            ends[rule.__name__] = [rule(*each) for each in drawn]
        shares = [
            f"{sum(came == kind for came, _ in of_rule) / count:.3f}"
            for kind in ("wrong", "none")
            for of_rule in ends.values()
        ]
        runs = [f"{sum(taken for _, taken in of_rule) / count:.1f}" for of_rule in ends.values()]
        print(f"| {name} | {planned} | {commits} | {slower:.0%} | {' | '.join([*shares, *runs])} |", flush=True)


if __name__ == "__main__":
    main()
