"""From windows to what a verdict uses: the windows of two arms, by session, and one value per session.

A window becomes seconds a step, and an arm's windows the mean of their faster half (`metrics.faster_half`). Disturbed
blocks are left out everywhere but in `step_samples_s`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from suite.plan.cells import Arm
from suite.records.record import Window
from suite.run.observations import Observations, Session
from suite.verdict import Middle, Windows, metrics

ALIKE = 3.0  # standard errors by which two arms may differ in what share of their windows was disturbed at first

Place = tuple[int, int]  # block, and place in the session


def taken(session: Session, arm: Arm) -> dict[Place, Window]:
    """Return an arm's windows."""
    name, left_out = arm.id, session.left_out
    return {
        (window.block, place): window
        for place, window in enumerate(session.windows)
        if window.arm == name and window.block not in left_out
    }


def over_sessions(run: Observations, arm: Arm) -> list[float]:
    """Return ln(seconds a step) of an arm, one value per session."""
    logs = []
    for session in run.sessions if arm in run.steps else ():
        if its_own := taken(session, arm).values():
            logs.append(metrics.faster_half(_logs(its_own, run.steps[arm], last=_told(session, arm))))
    return logs


def step_samples_s(run: Observations, arm: Arm) -> list[float]:
    """Return seconds a step of every window of an arm, disturbed or not, in the order of timing."""
    return [
        max(window.unselected.duration_ns) / run.steps[arm] / 1e9
        for session in run.sessions
        for window in session.windows
        if window.arm == arm.id
    ]


def by_session(run: Observations, own: Arm, other: Arm) -> dict[int, Windows]:
    """Return the windows of two arms, by session number.

    A base that several cells share is timed next to each of them: the window of the base that is nearest to the cell's
    counts, so that both sides have as many.
    """
    if own not in run.steps or other not in run.steps:
        return {}
    found, disturbance = {}, _Disturbance(own, other)
    for session in run.sessions:
        disturbance.add(session)  # up to this one: what a session shows does not change with later ones
        a, b = (taken(session, arm) for arm in (own, other))
        blocks = {block for block, _ in b}
        if places := [place for place in a if place[0] in blocks]:
            last = disturbance.alike and _told(session, own, other)
            beside = [b[_nearest(place, b)] for place in places]
            found[session.number] = Windows(
                _logs([a[place] for place in places], run.steps[own], last=last),
                _logs(beside, run.steps[other], last=last),
            )
    return found


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


def _logs(side: Iterable[Window], steps: int, *, last: bool) -> list[float]:
    """Return ln(seconds a step) of windows of so many steps, by their slowest rank.

    By their last times, or by their first: what others did may not always choose among times.
    """
    return [metrics.log_step_s(max((window if last else window.unselected).duration_ns), steps) for window in side]


def _nearest(window: Place, others: Iterable[Place]) -> Place:
    """Return the window of the same block that was timed at the nearest place, of two the one nearer to its middle."""
    same = [other for other in others if other[0] == window[0]]
    middle = sum(place for _, place in same) / len(same)  # a block is the same backwards
    return min(same, key=lambda other: (abs(other[1] - window[1]), abs(other[1] - middle)))


def windows(run: Observations, own: Arm, other: Arm) -> list[Windows]:
    """Return the windows of two arms of every session that has both."""
    return list(by_session(run, own, other).values())


def middles(run: Observations, own: Arm, other: Arm) -> list[Middle]:
    """Return ln(t_own / t_other) of every session."""
    return [*map(Middle.of, windows(run, own, other))]


def log_ratios(run: Observations, own: Arm, other: Arm) -> list[float]:
    """Return the same as numbers."""
    return [middle.value for middle in middles(run, own, other)]


def log_efficiencies(run: Observations, arm: Arm) -> list[float]:
    """Return ln E_k of an arm on k devices against its trainer's on one, one value per session."""
    return [metrics.log_efficiency(ratio, arm.mode, arm.world_size) for ratio in log_ratios(run, arm.on_one, arm)]
