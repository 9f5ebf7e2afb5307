"""How long windows are, what precedes them, when steps are warm, and when they hang."""

from __future__ import annotations

import math
from collections.abc import Callable

from suite.processes.jobs import READ_AHEAD

# A window is long compared with the microseconds of the clock and of the barrier, and short compared with the seconds
# over which a machine's speed drifts.
WINDOW_S = 0.12
SHORT_STEP_S = 1.0
# Steps are warm when a window is not faster than the one before by more than this factor: a first step loads kernels,
# compiles, and sets up connections, which can take seconds.
WARM = 1.25
MOST_WARM_UPS = 8
LEAD_IN_S = 0.05  # of untimed steps or calls before a window on GPUs
MAX_LEAD_IN = 1000


def hang_timeout_s(expected_s: float) -> float:
    """Return after how many seconds a command counts as hung that should take `expected_s`; a slow one is measured."""
    return max(20.0, 20 * expected_s)


def whole_turns(steps: int, loaders: int) -> int:
    """Return how many steps, at least these, are whole turns of a loader's processes (docs/adr/0003)."""
    return steps + -steps % max(1, loaders)


def drawn_before(lead_in: int, loaders: int) -> int:
    """Return how many minibatches precede a window: what the loader's processes had prepared, and untimed steps."""
    return READ_AHEAD * loaders + lead_in


def lead_in(kind: str, call_s: float) -> int:
    """Return how many untimed steps or calls precede a window; none on CPUs, whose clocks do not wait for work.

    Args:
        kind: of the devices.
        call_s: seconds of one of them.
    """
    return 0 if kind == "cpu" else min(MAX_LEAD_IN, math.ceil(LEAD_IN_S / call_s))


def warm_step_s(
    window_s: Callable[[int], float | None], usual_s: float = 0.0, steps: int = 0, loaders: int = 0
) -> float | None:
    """Take windows of steps until they are warm, and return the last one's seconds a step.

    Args:
        window_s: times so many steps and returns seconds a step; None where that failed.
        usual_s: of a warm step. A long step that takes no longer is warm at once, and others are after two windows; 0
            where nothing is known.
        steps: of every window but the first, which has one; 0 where that is not known.
        loaders: processes that feed a rank, in whose turns all windows but the first are.
    """
    step_s = window_s(1)
    for _ in range(MOST_WARM_UPS):
        if step_s is None or SHORT_STEP_S <= step_s <= WARM * usual_s:
            break
        more = steps or (2 if step_s < WINDOW_S else 1)
        before_s, step_s = step_s, window_s(whole_turns(more, loaders))
        if step_s is not None and (before_s <= WARM * step_s or step_s <= WARM * usual_s):
            break
    return step_s
