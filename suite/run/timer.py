"""Times windows of whatever is timed: steps of an arm, a variant of a step, calls of a collective.

A warm-up finds how long a step takes. On GPUs a window follows untimed steps, because their clocks wait for work. Where
others disturbed a window, it is timed again at once (docs/adr/0003).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from suite.processes.jobs import READ_AHEAD, Probed, Timed
from suite.records.record import Timing

# A window is long compared with the microseconds of the clock and of the barrier, and short compared with the seconds
# over which a machine's speed drifts.
WINDOW_S = 0.12
# Steps are warm when a window is not faster than the one before by more than this factor: a first step loads kernels,
# compiles, and sets up connections, which can take seconds.
WARM = 1.25
MOST_WARM_UPS = 8
LEAD_IN_S = 0.05  # of untimed steps or calls before a window on GPUs
MAX_LEAD_IN = 1000
MORE = 2  # windows at most in the place of one that was disturbed
MORE_SHARE = 0.4  # and so many for each of a session's windows


@dataclass(frozen=True)
class Subject:
    """What is timed.

    Attributes:
        window: times so many steps, after so many untimed ones, within so many seconds; None where that failed.
        first_s: deadline of a window whose steps may be the first ones.
        loaders: processes that feed a rank; windows have whole turns of them (docs/adr/0003).
        usual_s: of a warm step of the same work; 0 where nothing is known. A step that takes no longer is warm at once.
    """

    window: Callable[[int, int, float], Timing | None]
    first_s: float
    loaders: int = 0
    usual_s: float = 0.0


class Warm(NamedTuple):
    """Seconds of a warm step, and of the first window with everything around it."""

    step_s: float
    cold_s: float


class Timer:
    """The windows of one session. What others did decides which are timed again, and never how long a window took."""

    def __init__(self, kind: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Time on devices of this kind."""
        self._kind, self._clock = kind, clock
        self._windows, self._more = 0, 0

    def warm(self, subject: Subject, window_s: float = WINDOW_S) -> Warm | None:
        """Take windows until their steps are warm; None where one failed.

        Until they are, every window has one step where it is known how long a warm one takes, and otherwise two of a
        step that is shorter than a window.

        Args:
            subject: of the steps.
            window_s: that a window should be long.
        """
        begun = self._clock()
        step_s = self._untried(subject, 1, lead_in(self._kind), subject.first_s)
        cold_s = self._clock() - begun
        for _ in range(MOST_WARM_UPS):
            if step_s is None or step_s <= WARM * subject.usual_s:
                break
            more = whole_turns(2 if step_s < window_s and not subject.usual_s else 1, subject.loaders)
            before, first_s = lead_in(self._kind), subject.first_s
            if more > 1 and subject.loaders:
                before = lead_in(self._kind, loaders=subject.loaders)
                first_s = max(first_s, hang_timeout_s((more + before) * cold_s))
            before_s, step_s = step_s, self._untried(subject, more, before, first_s)
            if step_s is not None and (before_s <= WARM * step_s or step_s <= WARM * subject.usual_s):
                break
        return None if step_s is None else Warm(step_s, cold_s)

    def windows(self, subject: Subject, steps: int, step_s: float) -> list[Timing]:
        """Take a window of warm steps, and take it again while it was disturbed; return all of them in order."""
        before = lead_in(self._kind, step_s, subject.loaders)
        deadline_s = hang_timeout_s((steps + before) * step_s)
        tries: list[Timing] = []
        self._windows += 1
        while (taken := subject.window(steps, before, deadline_s)) is not None:
            tries.append(taken)
            if not taken.disturbed or len(tries) > MORE or self._more >= MORE_SHARE * self._windows:
                break
            self._more += 1
        return tries

    def _untried(self, subject: Subject, steps: int, before: int, deadline_s: float) -> float | None:
        taken = subject.window(steps, before, deadline_s)
        return None if taken is None else max(taken.duration_ns) / steps / 1e9


def hang_timeout_s(expected_s: float) -> float:
    """Return after how many seconds a command counts as hung that should take `expected_s`; a slow one is measured."""
    return max(20.0, 20 * expected_s)


def whole_turns(steps: int, loaders: int) -> int:
    """Return how many steps, at least these, are whole turns of a loader's processes (docs/adr/0003)."""
    return steps + -steps % max(1, loaders)


def lead_in(kind: str, step_s: float = LEAD_IN_S, loaders: int = 0) -> int:
    """Return how many untimed steps precede a window: none on CPUs, but one for each process of a loader.

    Args:
        kind: of the devices.
        step_s: seconds of one of them.
        loaders: processes that feed a rank, each of which delivers a minibatch before the clock is read.
    """
    return max(0 if kind == "cpu" else min(MAX_LEAD_IN, math.ceil(LEAD_IN_S / step_s)), loaders)


def taken_s(kind: str, steps: int, step_s: float, loaders: int = 0) -> float:
    """Return how long a window takes with what precedes it: what the loader had prepared, and untimed steps."""
    return (steps + READ_AHEAD * loaders + lead_in(kind, step_s, loaders)) * step_s


def timing(answers: Sequence[Timed | Probed]) -> Timing:
    """Return what the ranks tell of a window that took part; of all of them for how long others had their cores."""
    told = [answer for answer in answers if answer.duration_ns is not None]
    others = [answer.others_ns for answer in told if answer.others_ns is not None]
    return Timing(
        duration_ns=tuple(answer.duration_ns for answer in told if answer.duration_ns is not None),
        others_ns=tuple(others) if len(others) == len(told) else (),
    )
