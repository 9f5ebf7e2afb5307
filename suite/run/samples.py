"""From windows to the numbers that a verdict uses: rounds, and one value per session.

A window becomes seconds a step, a session's rounds become their location (`metrics.location`), and sessions become a
t-interval. Disturbed blocks are left out everywhere but in `step_samples_s`, and so are disturbed windows where enough
of a session is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from suite.plan.cells import Arm
from suite.run.observations import Observations, Session
from suite.verdict import metrics

FEWEST_ROUNDS = 4  # of a session without its disturbed windows; the middle of four leaves out the two outermost
FEWEST_SHARE = 0.25  # of its rounds; where fewer are undisturbed, disturbance is the machine's normal state
ALIKE = 2.0  # standard errors by which two arms may differ in what share of their windows was disturbed


class Round(NamedTuple):
    """ln(seconds a step) of one window, or of one window over another.

    Attributes:
        log: of its last times.
        clean: whether others did not disturb it then.
        first_log: of its first times, where it was timed again; otherwise the same.
    """

    log: float
    clean: bool
    first_log: float

    def over(self, other: Round) -> Round:
        """Return the ratio of two windows."""
        return Round(self.log - other.log, self.clean and other.clean, self.first_log - other.first_log)


def rounds(session: Session, arm: Arm, steps: int) -> dict[tuple[int, int], Round]:
    """Return an arm's windows of `steps` steps, by block and place in the session; the slowest rank counts."""
    left_out = session.left_out
    return {
        (window.block, place): Round(
            metrics.log_step_s(max(window.duration_ns), steps),
            not window.disturbed,
            metrics.log_step_s(max(window.unselected.duration_ns), steps),
        )
        for place, window in enumerate(session.windows)
        if window.arm == arm.id and window.block not in left_out
    }


def over_sessions(run: Observations, arm: Arm) -> list[float]:
    """Return ln(seconds a step) of an arm, one value per session."""
    logs = []
    for session in run.sessions if arm in run.steps else ():
        if taken := list(rounds(session, arm, run.steps[arm]).values()):
            logs.append(metrics.location(_kept(taken, chosen=_told(session, arm))))
    return logs


def step_samples_s(run: Observations, arm: Arm) -> list[float]:
    """Return seconds a step of every window of an arm, disturbed or not, in the order of timing."""
    return [
        max(window.unselected.duration_ns) / run.steps[arm] / 1e9
        for session in run.sessions
        for window in session.windows
        if window.arm == arm.id
    ]


def by_session(run: Observations, minuend: Arm, subtrahend: Arm) -> dict[int, list[float]]:
    """Return ln(t_minuend / t_subtrahend) of every round, by session number.

    A block visits its arms forwards and then backwards, so it holds two rounds, and their order cancels. A base that
    several cells share is timed next to each of them: the window of the base that is nearest to the cell's counts.
    """
    if minuend not in run.steps or subtrahend not in run.steps:
        return {}
    ratios, disturbance = {}, _Disturbance(minuend, subtrahend)
    for session in run.sessions:
        disturbance.add(session)  # up to this one: what a session shows does not change with later ones
        a, b = (rounds(session, arm, run.steps[arm]) for arm in (minuend, subtrahend))
        blocks = {block for block, _ in b}
        if pairs := [a[window].over(b[_nearest(window, b)]) for window in a if window[0] in blocks]:
            chosen = disturbance.alike and _told(session, minuend, subtrahend)
            ratios[session.number] = _kept(pairs, chosen=chosen)
    return ratios


class _Disturbance:
    """How often two arms were disturbed, over the sessions so far that have timed both.

    If one was far more often, it may cause it itself, and its disturbed windows have to count. Otherwise both have the
    same share p of their windows disturbed, and what is seen of n windows has a variance of p / n at most. A base that
    several cells share has more windows than each of them.
    """

    def __init__(self, *arms: Arm) -> None:
        self._ids = [arm.id for arm in arms]
        self._on_as_many = len({arm.world_size for arm in arms}) == 1
        self._windows, self._marked = [0, 0], [0, 0]

    def add(self, session: Session) -> None:
        """Count the windows of one more session."""
        both: list[list[bool]] = [[], []]
        for window in session.windows:
            if window.arm in self._ids:
                both[self._ids.index(window.arm)].append(window.unselected.disturbed)
        if all(both):
            for arm, marks in enumerate(both):
                self._windows[arm] += len(marks)
                self._marked[arm] += sum(marks)

    @property
    def alike(self) -> bool:
        """Whether both were disturbed about as often; of arms on different numbers of cores nothing is known."""
        if not self._on_as_many or not sum(self._marked):
            return True
        share = sum(self._marked) / sum(self._windows)
        a, b = (marked / windows for marked, windows in zip(self._marked, self._windows, strict=True))
        return abs(a - b) <= ALIKE * math.sqrt(share * sum(1 / windows for windows in self._windows))


def _told(session: Session, *arms: Arm) -> bool:
    """Return whether all these arms tell for how long others had their cores.

    Otherwise the windows of one that does not would stay, whatever they took, and those of the other would not.
    """
    names = {arm.id for arm in arms}
    return all(window.others_ns for window in session.windows if window.arm in names)


def _kept(taken: Sequence[Round], *, chosen: bool) -> list[float]:
    """Return the last times of the rounds that others did not disturb, and of all rounds where those are too few.

    Args:
        taken: rounds of one session.
        chosen: whether what others did may choose among times; otherwise the first times of all rounds count.
    """
    if not chosen:
        return [each.first_log for each in taken]
    kept = [each.log for each in taken if each.clean]
    enough = len(kept) >= max(FEWEST_ROUNDS, FEWEST_SHARE * len(taken))
    return kept if enough else [each.log for each in taken]


def _nearest(window: tuple[int, int], others: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the window of the same block that was timed at the nearest place, of two the one nearer to its middle."""
    same = [other for other in others if other[0] == window[0]]
    middle = sum(place for _, place in same) / len(same)  # a block is the same backwards
    return min(same, key=lambda other: (abs(other[1] - window[1]), abs(other[1] - middle)))


def contrast(run: Observations, minuend: Arm, subtrahend: Arm) -> list[list[float]]:
    """Return ln(t_minuend / t_subtrahend) of every round, one list per session."""
    return list(by_session(run, minuend, subtrahend).values())


def log_ratios(run: Observations, minuend: Arm, subtrahend: Arm) -> list[float]:
    """Return ln(t_minuend / t_subtrahend), one value per session."""
    return [metrics.location(pairs) for pairs in contrast(run, minuend, subtrahend)]


def log_efficiencies(run: Observations, arm: Arm) -> list[float]:
    """Return ln E_k of an arm on k devices against its trainer's on one, one value per session."""
    return [metrics.log_efficiency(ratio, arm.mode, arm.world_size) for ratio in log_ratios(run, arm.on_one, arm)]
