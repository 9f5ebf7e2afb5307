"""Judge a cell against a base that was measured in the same sessions.

A run looks at its cells after every session and stops early in either direction. The error probability is split over
the looks (`spending`) and, for FAIL, over everything in the run that can fail, so that by the union bound

    P(any FAIL | nothing is slower) <= ALPHA_FAIL   and   P(PASS | delta >= ln(1 + tolerance)) <= ALPHA_PASS for each
    cell.

The first look at which the cell is slower makes it suspicious; FAIL needs a later look, when fresh processes have added
a session and all sessions together still show it: the fourth session at the earliest. Equal code is slow in
three sessions of three too often for a FAIL (docs/verdict.md), and where several cells are alone in their world sizes,
also in four of four.
PASS before the last look also asks that half the tolerance is improbable, so that a slowdown a little below it does not
pass early. And it asks that all windows together are less slow than `UNEVEN` of the tolerance, because the bound is of
the faster half of them, which does not show what slows some steps.

The verdict is a function of the sessions alone: it repeats all looks and returns the first decision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from suite.verdict.metrics import Interval, from_logs, from_values, observations_needed, t_quantile
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome, Verdict
from suite.verdict.reasons import Reason
from suite.verdict.spread import Estimate, Learned, Middle, estimate

# Sessions; two of processes that have two speeds are too often alike, whatever was learned. They are also enough for a
# PASS of a cell alone in its world size: `fewest_alone(ALPHA_PASS)` is 3.
FIRST_LOOK = 3
EVEN = 36  # planned sessions with which every look would have the same share, but for the limits of the power
LEAST_POWER, MOST_POWER = 1.5, 4.0
SUSPICION = 1.25  # times the error of a FAIL: with more, a noisy cell beside quiet ones fails too often (docs/adr/0001)
UNEVEN = 0.75  # of the tolerance: by so much all windows together may be slower on average for a PASS (docs/adr/0003)
NOT_NOISE = 0.99  # confidence that a cell is not slower by the noise of its windows alone
ALIKE = 4.0  # times the variance within sessions, or so many times less: the sessions of such cells scatter alike
SETTLED = 0.10  # how probable it may still be that the slowdown reaches half the tolerance, for a PASS before the end


def spending(sessions: int, planned: int) -> float:
    """Return the share of the error probability for the look after `sessions`; over all looks it adds up to 1.

    The cumulative share is a power of the sessions (the family of Kim and DeMets, 1987). Where few are planned, noise
    leaves most decisions to the last look, which keeps most of the error. Where many are, a quiet cell is decided after
    a few, and these looks have more of it (docs/adr/0001).
    """
    planned = max(planned, FIRST_LOOK)
    if not FIRST_LOOK <= sessions <= planned:
        return 0.0
    power = min(max(EVEN / planned, LEAST_POWER), MOST_POWER)
    before = 0 if sessions == FIRST_LOOK else sessions - 1
    return float((sessions / planned) ** power - (before / planned) ** power)


def fewest_alone(alpha: float) -> int:
    """Return how many sessions a cell alone in its world size needs for a decision whose error is `alpha`.

    Where processes of one build have two speeds, one side's are slow and the other's fast in a quarter of the sessions,
    and each time by as much: no bound over few sessions shows that this may be chance.
    """
    return math.ceil(math.log(1 / alpha, 4))


def sessions_needed(alone: int) -> int:
    """Return how many sessions a plan must have for any cell to be decided, either way.

    Args:
        alone: comparisons that are alone in their world size; 0 where there is none.
    """
    return max(FIRST_LOOK + 1, fewest_alone(ALPHA_FAIL / max(1, alone)))


@dataclass(frozen=True)
class Terms:
    """What a run's verdicts keep to, and what their advice needs.

    Attributes:
        tolerance: m, the slowdown that must be found.
        comparisons: how many can fail.
        planned: sessions that the budget allows.
        session_s: wall seconds of one session, for the advice when nothing is clear.
        alone: how many comparisons of the run are alone in their world size.
        overrun_s: by how much the sessions took longer than the budget, for the advice.
    """

    tolerance: float
    comparisons: int
    planned: int
    session_s: float
    alone: int = 1
    overrun_s: float = 0.0

    def more_s(self, sessions: float) -> float:
        """Return by how many seconds to raise the budget for so many more sessions."""
        return sessions * self.session_s + self.overrun_s


def paired(
    middles: Sequence[Middle],
    terms: Terms,
    learned: Learned | None = None,
    peers: Sequence[Sequence[Middle | None]] = (),
) -> Verdict:
    """Judge a cell whose base was measured in the same sessions.

    Args:
        middles: ln(t_candidate / t_base) of every session so far.
        terms: of the run.
        learned: what a calibration knows of this machine.
        peers: of every other cell of the world size that has processes of its own, what each of these sessions shows;
            None for one that did not time it. Those whose windows scatter alike predict the cell's variance.
    """
    ratio = _ratio(middles)
    if len(middles) < FIRST_LOOK:
        more = FIRST_LOOK + 1 - len(middles)
        return Verdict(
            Outcome.INCONCLUSIVE,
            Reason("few sessions", {"sessions": len(middles), "needed": FIRST_LOOK, "more_s": terms.more_s(more)}),
            ratio,
            more,
        )
    margin, alpha_fail, planned = math.log1p(terms.tolerance), ALPHA_FAIL / terms.comparisons, terms.planned
    suspicious = crossing = uneven = False
    for sessions in range(FIRST_LOOK, len(middles) + 1):
        beside = _alike(middles[:sessions], [peer[:sessions] for peer in peers])
        least_fail = 0 if beside else fewest_alone(ALPHA_FAIL / terms.alone)
        delta = estimate(middles[:sessions], learned, beside)
        share = spending(sessions, planned)
        low, high = _bound(delta, -1, alpha_fail * share), _bound(delta, 1, ALPHA_PASS * share)
        crossing = low > 0 and delta.mean >= margin / 2
        # The bound of an early look without a calibration is wide, and suspicion alone spends no error.
        alarming = crossing if learned else _bound(delta, -1, SUSPICION * alpha_fail) > 0 and delta.mean >= margin / 2
        if crossing and suspicious and sessions >= least_fail:
            why = Reason("slower", {"delta": delta.mean, "low": low, "confidence": 1 - ALPHA_FAIL})
            return Verdict(Outcome.FAIL, why, _ratio(middles[:sessions]))
        settled = sessions >= planned or _bound(delta, 1, SETTLED) < margin / 2
        average = fmean(m.value if m.average is None else m.average for m in middles[:sessions])
        fast = high < margin and delta.mean < margin / 2
        uneven = fast and average >= UNEVEN * margin
        if fast and not uneven and settled:
            why = Reason("not slower", {"delta": delta.mean, "high": high, "sessions": sessions})
            return Verdict(Outcome.PASS, why, _ratio(middles[:sessions]))
        suspicious = suspicious or alarming
    nearest = (
        _Decision(delta.mean, alpha_fail, least_fail)
        if delta.mean > margin / 2
        else _Decision(margin - delta.mean, ALPHA_PASS, 0)
    )
    if uneven:
        why = Reason("uneven", {"delta": delta.mean, "average": average})
    elif crossing:
        why = Reason("unconfirmed", {"delta": delta.mean, "low": low, **_advice(delta, terms, nearest)})
    else:
        shown = from_values([middle.value for middle in middles])  # as in the table; the bounds of decisions are wider
        ends = {"low": shown.low or 0.0, "high": shown.high or 0.0}
        why = Reason("undecided", {"delta": delta.mean, **ends, **_advice(delta, terms, nearest)})
    return Verdict(Outcome.INCONCLUSIVE, why, ratio, _lacking(delta, nearest, planned))


def _alike(own: Sequence[Middle], peers: Sequence[Sequence[Middle | None]]) -> list[list[float]]:
    """Return the values of peers that were timed in two of these sessions at least, and whose windows scatter alike.

    How much sessions differ depends on how much their windows scatter, so that other peers predict another variance.
    """
    within, values = _within(own), list[list[float]]()
    for peer in peers:
        seen = [middle for middle in peer if middle is not None]
        theirs = _within(seen)
        known = within and theirs  # single windows show nothing of it
        if len(seen) > 1 and (not known or within / ALIKE <= theirs <= within * ALIKE):
            values.append([middle.value for middle in seen])
    return values


def _within(middles: Sequence[Middle]) -> float:
    """Return the mean variance that windows explain of a session; 0 where they show none."""
    return fmean(middle.variance or 0.0 for middle in middles) if middles else 0.0


def surplus(middles: Sequence[Middle], tolerance: float) -> float:
    """Return by how much a cell looks slower so far, to choose whose parts are worth timing. It decides nothing.

    Args:
        middles: ln(t_candidate / t_base) of every session so far.
        tolerance: m; a FAIL needs an estimate of half of it.

    Returns:
        ln(t_candidate / t_base); 0 where that is less than a FAIL needs, or the noise of windows alone may explain it.
    """
    known = [(middle.variance, middle.df) for middle in middles if middle.variance is not None and middle.df]
    if not known:
        return 0.0
    mean = fmean(middle.value for middle in middles)
    error = math.sqrt(math.fsum(variance for variance, _ in known) / len(known) / len(middles))
    explained = t_quantile(sum(df for _, df in known), NOT_NOISE) * error
    return mean if mean >= math.log1p(tolerance) / 2 and mean > explained else 0.0


def _ratio(sessions: Sequence[Middle]) -> Interval | None:
    return from_logs([session.value for session in sessions]) if sessions else None


def _bound(delta: Estimate, direction: int, alpha: float) -> float:
    """Return the one-sided confidence bound of an estimate; infinite where no error may be spent."""
    return (
        math.inf * direction if alpha <= 0 else delta.mean + direction * t_quantile(delta.df, 1 - alpha) * delta.error
    )


class _Decision(NamedTuple):
    """How far a bound may be from the mean in a decision, the decision's error, and its fewest sessions."""

    distance: float
    alpha: float
    least: int


def _lacking(delta: Estimate, nearest: _Decision, planned: int) -> float:
    """Return how many more of the planned sessions would decide if they showed the same; infinite where all do not."""
    looks = range(max(nearest.least, delta.sessions + 1), planned + 1)
    enough = (n for n in looks if _half(delta, n, nearest.alpha * spending(n, planned)) < nearest.distance)
    return next(enough, math.inf) - delta.sessions


def _advice(delta: Estimate, terms: Terms, nearest: _Decision) -> dict[str, float]:
    """Return what would decide beside less noise: seconds to the nearest decision, a tolerance that would be a PASS."""
    enough = observations_needed(
        delta.sessions, lambda n: n >= nearest.least and _half(delta, n, nearest.alpha * _of_last(n)) < nearest.distance
    )
    found = {} if enough is None else {"more_s": terms.more_s(enough - delta.sessions)}
    # A PASS needs both: the bound below ln(1 + m), and the estimate below half of it.
    half = _half(delta, delta.sessions, ALPHA_PASS * _of_last(delta.sessions))
    upper = max(max(delta.mean, 0) + half, 2 * delta.mean)
    wider = math.ceil(100 * math.expm1(upper)) / 100
    if not terms.tolerance < wider <= 1:  # more than --scaling-tolerance may be, or time alone is missing
        return found
    return {**found, "tolerance": wider}


def _half(delta: Estimate, sessions: int, alpha: float) -> float:
    """Return the half width after so many sessions, at this error."""
    df = delta.df + sessions - delta.sessions
    return t_quantile(df, 1 - alpha) * math.sqrt(delta.variance / sessions)


def _of_last(planned: int) -> float:
    """Return the share of the error that the last look of a plan has."""
    return spending(max(planned, FIRST_LOOK), planned)
