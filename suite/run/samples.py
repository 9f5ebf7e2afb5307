"""From windows to numbers a verdict can use: a session's rounds, their middle, one value a session.

The reduction is the same everywhere: a window to a time a step, a session's rounds to their middle
(`metrics.location`), sessions to a t-interval. Disturbed blocks are left out of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from suite.plan.cells import Arm
from suite.run.observations import Observations
from suite.run.session import Session
from suite.verdict import metrics


def rounds(session: Session, arm: Arm, steps: int) -> dict[tuple[int, int], float]:
    """ln(seconds a step) of an arm in a session, by block and by place in the session; the slowest rank counts."""
    left_out = session.left_out
    return {
        (window.block, place): metrics.log_step_s(max(window.duration_ns), steps)
        for place, window in enumerate(session.windows)
        if window.arm == arm.id and window.block not in left_out
    }


def over_sessions(run: Observations, arm: Arm) -> list[float]:
    """ln(seconds a step) of an arm, one value a session."""
    per_session = [rounds(session, arm, run.steps[arm]) for session in run.sessions if arm in run.steps]
    return [metrics.location(list(found.values())) for found in per_session if found]


def step_samples_s(run: Observations, arm: Arm) -> list[float]:
    """Seconds a step of every window of an arm, in the order they were timed, disturbed or not."""
    return [
        max(window.duration_ns) / run.steps[arm] / 1e9
        for session in run.sessions
        for window in session.windows
        if window.arm == arm.id
    ]


def by_session(run: Observations, minuend: Arm, subtrahend: Arm) -> dict[int, list[float]]:
    """ln(t_minuend / t_subtrahend) of every round, in which both were timed next to each other, by session number.

    A block visits its arms forwards and then backwards, so it holds two rounds, and their order cancels. A base that
    several cells share is visited beside each of them: the nearest of its windows counts.
    """
    if minuend not in run.steps or subtrahend not in run.steps:
        return {}
    found = {}
    for session in run.sessions:
        a = rounds(session, minuend, run.steps[minuend])
        b = rounds(session, subtrahend, run.steps[subtrahend])
        blocks = {block for block, _ in b}
        if pairs := [a[window] - b[_nearest(window, b)] for window in a if window[0] in blocks]:
            found[session.number] = pairs
    return found


def contrast(run: Observations, minuend: Arm, subtrahend: Arm) -> list[list[float]]:
    """The same, a list a session."""
    return list(by_session(run, minuend, subtrahend).values())


def _nearest(window: tuple[int, int], others: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Of the same block, the one timed next to it."""
    return min((other for other in others if other[0] == window[0]), key=lambda other: abs(other[1] - window[1]))


def log_ratios(run: Observations, minuend: Arm, subtrahend: Arm) -> list[float]:
    """The same, one value a session."""
    return [metrics.location(pairs) for pairs in contrast(run, minuend, subtrahend)]


def log_efficiencies(run: Observations, arm: Arm, one: Arm, mode: str) -> list[float]:
    """Ln E_k of an arm, one value a session.

    Args:
        arm: on k devices.
        one: the same on one device.
        mode: the cell's.
    """
    return [metrics.log_efficiency(ratio, 0.0, mode, arm.world_size) for ratio in log_ratios(run, one, arm)]
