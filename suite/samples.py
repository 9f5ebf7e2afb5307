"""From windows to numbers a verdict can use: a session's rounds, their middle, one value a session.

The reduction is the same everywhere: a window to a time a step, a session's rounds to their middle
(`metrics.location`), sessions to a t-interval. Disturbed blocks are left out of all of them.
"""

from __future__ import annotations

from suite import metrics
from suite.cells import Arm
from suite.measurement import Measurement
from suite.session import Session


def rounds(session: Session, arm: Arm, steps: int) -> dict[tuple[int, int], float]:
    """ln(seconds a step) of an arm in a session, by block and by visit within it; the slowest rank counts."""
    found: dict[tuple[int, int], float] = {}
    left_out = session.left_out
    for window in session.windows:
        if window.arm == arm.id and window.block not in left_out:
            visit = (window.block, 1 if (window.block, 0) in found else 0)
            found[visit] = metrics.log_step_s(max(window.duration_ns), steps)
    return found


def over_sessions(run: Measurement, arm: Arm) -> list[float]:
    """ln(seconds a step) of an arm, one value a session."""
    per_session = [rounds(session, arm, run.steps[arm]) for session in run.sessions if arm in run.steps]
    return [metrics.location(list(found.values())) for found in per_session if found]


def step_samples_s(run: Measurement, arm: Arm) -> list[float]:
    """Seconds a step of every window of an arm, in the order they were timed, disturbed or not."""
    return [
        max(window.duration_ns) / run.steps[arm] / 1e9
        for session in run.sessions
        for window in session.windows
        if window.arm == arm.id
    ]


def contrast(run: Measurement, minuend: Arm, subtrahend: Arm) -> list[list[float]]:
    """ln(t_minuend / t_subtrahend) of every round, in which both were timed next to each other; a list a session.

    A block visits its arms forwards and then backwards, so it holds two rounds, and their order cancels.
    """
    if minuend not in run.steps or subtrahend not in run.steps:
        return []
    found = []
    for session in run.sessions:
        a = rounds(session, minuend, run.steps[minuend])
        b = rounds(session, subtrahend, run.steps[subtrahend])
        if pairs := [a[visit] - b[visit] for visit in a if visit in b]:
            found.append(pairs)
    return found


def log_ratios(run: Measurement, minuend: Arm, subtrahend: Arm) -> list[float]:
    """The same, one value a session."""
    return [metrics.location(pairs) for pairs in contrast(run, minuend, subtrahend)]


def log_efficiencies(run: Measurement, arm: Arm, one: Arm, mode: str) -> list[float]:
    """Ln E_k of an arm, one value a session.

    Args:
        arm: on k devices.
        one: the same on one device.
        mode: the cell's.
    """
    return [metrics.log_efficiency(ratio, 0.0, mode, arm.world_size) for ratio in log_ratios(run, one, arm)]
