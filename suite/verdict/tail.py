"""Find windows that became slow while the faster half of a session did not: a slow tail, or a second mode.

It fails nothing. A verdict compares the faster half of both sides' windows (`metrics.faster_half`), so it does not see
what makes one step in ten slower. With the logarithms of one side's times, x is their mean less that of their faster
half, and a session's tail is

    x_candidate - x_base,

by how much more the candidate's windows take on average than its faster ones do. Where both sides scatter alike it is 0
on average, however heavy tails are. Where all windows are faster on average, nothing is said: some windows that became
faster look the same. The session is the unit: what one set of processes adds to its tail is spread between sessions.
The tail is judged like a slowdown (`spread.estimate`), in one look at the end, where its error from the windows alone
(its influence function) predicts the spread between sessions.

Not covered: modes that a process keeps for a whole session, which move its middle. `python -m docs.evidence.tails` at
85bc9f57 shows how often a tail is named.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from suite.verdict.metrics import Interval, faster_half, half_of, t_quantile, winsorised
from suite.verdict.outcome import ALPHA_WARN, CONFIDENCE, WORTH
from suite.verdict.paired import FIRST_LOOK
from suite.verdict.reasons import percent
from suite.verdict.spread import Learned, Middle, Windows, estimate

SLOWEST = 10  # the slowest tenth is described


@dataclass(frozen=True)
class Tail:
    """The tail of a cell against its base's.

    Attributes:
        ratio: how much longer windows take on average than the faster half, t_candidate / t_base; 95 % over sessions.
        said: what grew, in words; "" where nothing is shown to have grown.
    """

    ratio: Interval
    said: str


def tail(sessions: Sequence[Windows], comparisons: int) -> Tail | None:
    """Judge the tail of a cell.

    Args:
        sessions: the windows of candidate and base.
        comparisons: cells of the run that are judged so; they share `ALPHA_WARN`.

    Returns:
        None from fewer than `FIRST_LOOK` sessions.
    """
    if len(sessions) < FIRST_LOOK:
        return None
    excess = estimate([_excess(session) for session in sessions], Learned(0.0, 0.0))
    half = t_quantile(excess.df, 0.975) * excess.error
    ratio = Interval(excess.mean, excess.mean - half, excess.mean + half).exp
    low = excess.mean - t_quantile(excess.df, 1 - ALPHA_WARN / comparisons) * excess.error
    every = sorted(value for session in sessions for value in session.log_ratios)
    if low <= 0 or excess.mean < WORTH or statistics.fmean(every) <= 0:
        return Tail(ratio, "")
    slowest = statistics.fmean(every[-max(1, len(every) // SLOWEST) :])
    faster = statistics.fmean(Middle.of(session).value for session in sessions)
    return Tail(
        ratio,
        f"a slow tail grew: the slowest tenth of its rounds is {percent(slowest)} than the base's next to them, the "
        f"faster half {percent(faster)}; on average the tail costs {math.expm1(excess.mean):.1%}, at least "
        f"{math.expm1(low):.1%} {CONFIDENCE}",
    )


def _excess(session: Windows) -> Middle:
    """Return a session's tail, and the variance that its windows explain: the sum of squared influences / J (J - 1)."""
    own, other = (statistics.fmean(side) - faster_half(side) for side in (session.own, session.other))
    if (count := len(session.own)) == 1:
        return Middle(own - other)
    squares = math.fsum(each**2 for side in (session.own, session.other) for each in _influences(side))
    return Middle(own - other, squares / (count * (count - 1)), 2 * (count - 1))


def _influences(side: Sequence[float]) -> list[float]:
    """Return by how much each window, in the order of times, moves the mean of all less that of the faster half."""
    adjusted, weight = winsorised(side), len(side) / half_of(len(side))
    mean, centre = statistics.fmean(side), statistics.fmean(adjusted)
    return [time - mean - weight * (kept - centre) for time, kept in zip(sorted(side), adjusted, strict=True)]
