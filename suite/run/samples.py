"""From windows to the numbers that a verdict uses: rounds, and one value per session.

A window becomes seconds a step, a session's rounds become their location (`metrics.location`), and sessions become a
t-interval. Disturbed blocks are left out everywhere but in `step_samples_s`, and so are disturbed windows where enough
of a session is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from suite.plan.cells import Arm
from suite.run.observations import Observations, Session
from suite.verdict import metrics

FEWEST_ROUNDS = 4  # of a session without its disturbed windows; the middle of four leaves out the two outermost
FEWEST_SHARE = 0.25  # of its rounds; where less is undisturbed, disturbance is the machine's normal state
ALIKE = 4.0  # standard errors by which two arms may differ in what share of their windows was disturbed


def rounds(session: Session, arm: Arm, steps: int) -> dict[tuple[int, int], float]:
    """Return ln(seconds a step) of an arm's windows, by block and place in the session; the slowest rank counts."""
    left_out = session.left_out
    return {
        (window.block, place): metrics.log_step_s(max(window.duration_ns), steps)
        for place, window in enumerate(session.windows)
        if window.arm == arm.id and window.block not in left_out
    }


def over_sessions(run: Observations, arm: Arm) -> list[float]:
    """Return ln(seconds a step) of an arm, one value per session."""
    logs = []
    for session in run.sessions if arm in run.steps else ():
        clean = _undisturbed(session, arm)
        if taken := [(log, place in clean) for (_, place), log in rounds(session, arm, run.steps[arm]).items()]:
            logs.append(metrics.location(_kept(taken)))
    return logs


def step_samples_s(run: Observations, arm: Arm) -> list[float]:
    """Return seconds a step of every window of an arm, disturbed or not, in the order of timing."""
    return [
        max(window.duration_ns) / run.steps[arm] / 1e9
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
    ratios = {}
    for place, session in enumerate(run.sessions, start=1):
        a = rounds(session, minuend, run.steps[minuend])
        b = rounds(session, subtrahend, run.steps[subtrahend])
        blocks, clean = {block for block, _ in b}, _undisturbed(session, minuend, subtrahend)
        pairs = [(window, _nearest(window, b)) for window in a if window[0] in blocks]
        if pairs:  # what a session shows does not change with later ones
            alike = _alike(run.sessions[:place], minuend, subtrahend)
            ratios[session.number] = _kept([(a[x] - b[y], not alike or {x[1], y[1]} <= clean) for x, y in pairs])
    return ratios


def _alike(sessions: Iterable[Session], a: Arm, b: Arm) -> bool:
    """Return whether two arms on as many cores were disturbed about as often, in sessions that have timed both.

    If not, one may cause it itself, and its disturbed windows have to count. Otherwise both have the same share p of
    their windows disturbed, and what is seen of n windows has a variance of p / n at most. A base that several cells
    share has more windows than each of them.
    """
    if a.world_size != b.world_size:
        return True
    timed = [[[window.disturbed for window in s.windows if window.arm == arm.id] for arm in (a, b)] for s in sessions]
    both = [session for session in timed if all(session)]
    windows, marked = ([sum(map(count, arm)) for arm in zip(*both, strict=True)] for count in (len, sum))
    if not sum(marked):
        return True
    share = sum(marked) / sum(windows)
    apart = marked[0] / windows[0] - marked[1] / windows[1]
    return abs(apart) <= ALIKE * math.sqrt(share * (1 / windows[0] + 1 / windows[1]))


def _undisturbed(session: Session, *arms: Arm) -> set[int]:
    """Return the places in the session of these arms' windows that were not disturbed.

    All of them where an arm does not tell for how long others had its cores: its own windows would stay, whatever they
    took, and the other arm's would not.
    """
    names = {arm.id for arm in arms}
    windows = [(place, window) for place, window in enumerate(session.windows) if window.arm in names]
    told = all(window.others_ns for _, window in windows)
    return {place for place, window in windows if not (told and window.disturbed)}


def _kept(taken: Sequence[tuple[float, bool]]) -> list[float]:
    """Return the values of rounds that were not disturbed; all of them where those are too few."""
    kept = [value for value, undisturbed in taken if undisturbed]
    return kept if len(kept) >= max(FEWEST_ROUNDS, FEWEST_SHARE * len(taken)) else [value for value, _ in taken]


def _nearest(window: tuple[int, int], others: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the window of the same block that was timed at the nearest place."""
    return min((other for other in others if other[0] == window[0]), key=lambda other: abs(other[1] - window[1]))


def contrast(run: Observations, minuend: Arm, subtrahend: Arm) -> list[list[float]]:
    """Return ln(t_minuend / t_subtrahend) of every round, one list per session."""
    return list(by_session(run, minuend, subtrahend).values())


def log_ratios(run: Observations, minuend: Arm, subtrahend: Arm) -> list[float]:
    """Return ln(t_minuend / t_subtrahend), one value per session."""
    return [metrics.location(pairs) for pairs in contrast(run, minuend, subtrahend)]


def log_efficiencies(run: Observations, arm: Arm, one: Arm, mode: str) -> list[float]:
    """Return ln E_k of an arm on k devices, one value per session; `one` is this trainer's arm on one device."""
    return [metrics.log_efficiency(ratio, 0.0, mode, arm.world_size) for ratio in log_ratios(run, one, arm)]
