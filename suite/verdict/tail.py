"""Find rounds that became slow while the middle of a session did not: a slow tail, or a second mode. It fails nothing.

A session's middle (`metrics.location`) leaves out its slowest and its fastest quarter, so a verdict hardly sees what
makes one step in ten slower. With d_j = ln(t_candidate / t_base) of its rounds, a session's tail is

    x = mean(d_j) - location(d_j),

by how much longer all rounds take on average than the middle ones do. Where both sides scatter alike, d_j is symmetric
and x is 0 on average, however heavy its tails are. The session is the unit: what one set of processes adds to its tail
is spread between sessions. x is judged like a slowdown (`spread.estimate`), in one look at the end, where the error of
x from the rounds alone (its influence function) predicts the spread between sessions.

Not covered: modes that a process keeps for a whole session, which move its middle. docs/evidence/verdict.md has what is
found.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from suite.verdict.metrics import Interval, location, t_quantile, winsorised
from suite.verdict.outcome import ALPHA_WARN, CONFIDENCE, WORTH, percent
from suite.verdict.paired import FIRST_LOOK
from suite.verdict.spread import Learned, Middle, estimate

SLOWEST = 10  # the slowest tenth is described


@dataclass(frozen=True)
class Tail:
    """The tail of a cell against its base's.

    Attributes:
        ratio: how much longer rounds take on average than in their middle, t_candidate / t_base; 95 % over sessions.
        said: what grew, in words; "" where nothing is shown to have grown.
    """

    ratio: Interval
    said: str


def tail(rounds: Sequence[Sequence[float]], comparisons: int) -> Tail | None:
    """Judge the tail of a cell.

    Args:
        rounds: ln(t_candidate / t_base) of every round, a list for each session.
        comparisons: cells of the run that are judged so; they share `ALPHA_WARN`.

    Returns:
        None from fewer than `FIRST_LOOK` sessions.
    """
    if len(rounds) < FIRST_LOOK:
        return None
    excess = estimate([_excess(session) for session in rounds], Learned(0.0, 0.0))
    half = t_quantile(excess.df, 0.975) * excess.error
    ratio = Interval(excess.mean, excess.mean - half, excess.mean + half).exp
    low = excess.mean - t_quantile(excess.df, 1 - ALPHA_WARN / comparisons) * excess.error
    if low <= 0 or excess.mean < WORTH:
        return Tail(ratio, "")
    every = sorted(value for session in rounds for value in session)
    slowest = statistics.fmean(every[-max(1, len(every) // SLOWEST) :])
    middle = statistics.fmean(location(session) for session in rounds)
    return Tail(
        ratio,
        f"a slow tail grew: the slowest tenth of its rounds is {percent(slowest)} than the base's next to them, the "
        f"middle {percent(middle)}; on average the tail costs {math.expm1(excess.mean):.1%}, at least "
        f"{math.expm1(low):.1%} {CONFIDENCE}",
    )


def _excess(session: Sequence[float]) -> Middle:
    """Return a session's tail, and the variance that its rounds explain: the sum of squared influences / J (J - 1)."""
    count, mean = len(session), statistics.fmean(session)
    value = mean - location(session)
    if count == 1:
        return Middle(value, None, None)
    adjusted, kept = winsorised(session)
    centre, weight = statistics.fmean(adjusted), count / kept
    influences = (r - mean - weight * (w - centre) for r, w in zip(sorted(session), adjusted, strict=True))
    return Middle(value, math.fsum(each**2 for each in influences) / (count * (count - 1)), count - 1)
