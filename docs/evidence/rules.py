"""The same recorded samples judged by other tools' rules and by ours: false alarms, misses, seconds, side by side.

    python -m docs.evidence.rules                                    # docs/evidence/recording.json
    python -m docs.evidence.rules FILE --arms two twoB --start-s 12  # a file that names its arms, without wall times

Both arms of a recording run identical code; a slowdown is planted by multiplying the candidate's times. Only "slower"
counts as an alarm. Rules that also report a change for the better (the two-point rule, Mann-Whitney) alarm twice as
often on identical code as the table says. What each rule compares:

- **mean, 5 %** and **min, 5 %**: pytest-benchmark's `--benchmark-compare-fail=mean:5%` and `min:5%`. The mean (the
  fastest) of all rounds of a run against that of the saved run; fails above 5 %.
- **median, 7 %**: TorchBench's two-point rule. One number a run, here the median of its rounds; differs by above 7 %.
- **U test, p < .01**: Mann and Whitney's, two-sided, all rounds of one run against all of the other, as if each were a
  draw of its own; slower by the median.
- **U test, p < .002, and 10 %**: asv's. The same test, and medians that differ by a factor above 1.1.
- **ours**: `suite.verdict.paired` as `docs.evidence.replay` feeds it, without the rounds of blocks that the run marked
  as disturbed, which the others have no marks for; missed is whatever did not end in FAIL.

Each of the others is given four kinds of runs, from its everyday use to its best case:

- **saved, 1 session**: fresh processes time one arm; against the same arm of another session, all ordered pairs of
  sessions, either arm. What a saved baseline or a stored result is.
- **saved, S sessions**: the rounds of S sessions pooled, against those of S others, drawn at random.
- **interleaved, 1 session**: candidate and base of one session, which took turns; all sessions, either label.
- **interleaved, S sessions**: the rounds of S sessions pooled, candidate against base; drawn with replacement, the
  labels swapped in each by the toss of a coin. S is the most sessions that ours may use.

Seconds are of measuring what is new: starts of sessions, and windows; that of a saved run is not counted, and starting
one arm alone is taken for half of starting both, as they share the cores. Intervals are exact (Clopper-Pearson) for the
comparisons made; these share sessions, so the last column says how many without a session in common the recording
holds, and with so few only differences between the rows mean much.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu

from docs.evidence.recording import RecordedSession
from docs.evidence.replay import (
    Case,
    parser_of,
    planned_sessions,
    rate,
    replay,
    session_s,
    sessions_and_learned,
)
from suite.verdict import Learned, Outcome

PLANTED = (0.0, 0.03, 0.05, 0.10)
OURS = (Case(0.0), Case(0.0, tolerance=0.03, budget_s=300.0))

Samples = NDArray[np.float64]  # seconds a step: (comparisons, rounds of a run)
Alarms = NDArray[np.bool_]  # (comparisons,)
Rule = Callable[[Samples, Samples], Alarms]  # (candidate, base)


def ratio_above(middle: Callable[..., Samples], factor: float) -> Rule:
    """One number a run, and a threshold on their ratio."""
    return lambda candidate, base: middle(candidate, axis=1) > factor * middle(base, axis=1)


def u_test(p: float, factor: float = 1.0) -> Rule:
    """Mann and Whitney's test over rounds, two-sided, and a threshold on the ratio of medians."""
    slower = ratio_above(np.median, factor)
    return lambda candidate, base: (mannwhitneyu(candidate, base, axis=1).pvalue < p) & slower(candidate, base)


RULES: dict[str, Rule] = {
    "mean, 5 %": ratio_above(np.mean, 1.05),
    "min, 5 %": ratio_above(np.min, 1.05),
    "median, 7 %": ratio_above(np.median, 1.07),
    "U test, p < .01": u_test(0.01),
    "U test, p < .002, and 10 %": u_test(0.002, 1.1),
}


@dataclass(frozen=True)
class Comparisons:
    """One kind of runs: what is compared, what measuring the new run takes, and how many have no session in common."""

    name: str
    candidate: Samples
    base: Samples
    seconds: float
    independent: int


def samples(sessions: Sequence[RecordedSession]) -> Samples:
    """All rounds: candidate and base, (sessions, 2, rounds); of longer sessions the first, so that all have as many."""
    rounds = min(len(session.base) for session in sessions)
    return np.array([[session.candidate[:rounds], session.base[:rounds]] for session in sessions])


def saved(x: Samples, seconds: float) -> Comparisons:
    """Every session against every other, the same arm in both."""
    new, old = np.nonzero(~np.eye(len(x), dtype=bool))
    candidate, base = (np.concatenate([x[which, 0], x[which, 1]]) for which in (new, old))
    return Comparisons("saved, 1 session", candidate, base, seconds, len(x) // 2)


def saved_pooled(x: Samples, seconds: float, sessions: int, draws: int, rng: np.random.Generator) -> Comparisons:
    """Some sessions against as many others, the same arm in all."""
    chosen = rng.permuted(np.tile(np.arange(len(x)), (draws, 1)), axis=1)[:, : 2 * sessions]
    both = x[chosen, rng.integers(2, size=(draws, 1))]
    candidate, base = (half.reshape(draws, -1) for half in (both[:, :sessions], both[:, sessions:]))
    name = f"saved, {sessions} sessions"
    return Comparisons(name, candidate, base, sessions * seconds, len(x) // (2 * sessions))


def interleaved(x: Samples, seconds: float) -> Comparisons:
    """The two arms of every session, both ways round."""
    candidate, base = np.concatenate([x[:, 0], x[:, 1]]), np.concatenate([x[:, 1], x[:, 0]])
    return Comparisons("interleaved, 1 session", candidate, base, seconds, len(x))


def interleaved_pooled(x: Samples, seconds: float, sessions: int, draws: int, rng: np.random.Generator) -> Comparisons:
    """The two arms of some sessions, labels at random."""
    chosen, label = rng.integers(len(x), size=(draws, sessions)), rng.integers(2, size=(draws, sessions))
    candidate, base = (x[chosen, which].reshape(draws, -1) for which in (label, 1 - label))
    name = f"interleaved, {sessions} sessions"
    return Comparisons(name, candidate, base, sessions * seconds, len(x) // sessions)


def kinds(sessions: Sequence[RecordedSession], each_s: float, pooled: int, draws: int, seed: int) -> list[Comparisons]:
    """The four kinds of runs; pooled ones of other sessions only where the recording has enough.

    Args:
        sessions: recorded.
        each_s: wall seconds of a session with both arms.
        pooled: sessions of a pooled run.
        draws: of pooled runs.
        seed: of the draws.
    """
    x, rng = samples(sessions), np.random.default_rng(seed)
    windows_s = statistics.median(session.window_s for session in sessions)
    alone_s = (each_s - windows_s) / 2 + windows_s / 2
    found = [saved(x, alone_s), interleaved(x, each_s)]
    if len(x) >= 2 * pooled:
        found.append(saved_pooled(x, alone_s, pooled, draws, rng))
    return [*found, interleaved_pooled(x, each_s, pooled, draws, rng)]


def rows(rules: dict[str, Rule], kind: Comparisons) -> list[str]:
    """A line for every rule on one kind of runs."""
    found = []
    for name, rule in rules.items():
        alarms = [int(rule(kind.candidate * (1 + planted), kind.base).sum()) for planted in PLANTED]
        trials = len(kind.base)
        rates = [rate(alarms[0], trials), *(rate(trials - count, trials) for count in alarms[1:])]
        found.append(f"| {name} | {kind.name} | {' | '.join(rates)} | {kind.seconds:.0f} | {kind.independent} |")
    return found


def our_row(
    sessions: Sequence[RecordedSession], each_s: float, case: Case, runs: int, seed: int, learned: Learned | None
) -> str:
    """Ours; its seconds are the mean of a plant's runs, of the plant that took least and of that which took most."""
    planned = planned_sessions(case.budget_s, each_s)
    ends = [
        replay(sessions, Case(planted, case.tolerance, case.budget_s), planned, each_s, runs, seed, learned)
        for planted in PLANTED
    ]
    fails = [end.outcomes[Outcome.FAIL] for end in ends]
    rates = [rate(fails[0], runs), *(rate(runs - count, runs) for count in fails[1:])]
    low, high = (pick(end.sessions for end in ends) * each_s for pick in (min, max))
    calibrated = "" if learned is None else ", calibrated"
    name = f"**ours**, tolerance {case.tolerance:.0%}{calibrated} | until decided, at most {planned} sessions"
    return f"| {name} | {' | '.join(rates)} | {low:.0f}-{high:.0f} | {len(sessions) // planned} |"


def table(
    sessions: Sequence[RecordedSession], start_s: float | None, runs: int, seed: int, learned: Learned | None = None
) -> str:
    """Every rule on every kind of runs, as Markdown; `learned` from other sessions adds ours with a calibration."""
    each_s = session_s(sessions, start_s)
    pooled = planned_sessions(OURS[0].budget_s, each_s)
    head = "| rule | runs | false alarms | 3 % missed | 5 % missed | 10 % missed | seconds | independent |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for kind in kinds(sessions, each_s, pooled, runs, seed):
        lines += rows(RULES, kind)
    for knowledge in [None] if learned is None else [None, learned]:
        lines += [our_row(sessions, each_s, case, runs, seed, knowledge) for case in OURS]
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = parser_of("Other tools' rules and ours, on the same recorded samples.")
    options = parser.parse_args()
    sessions, learned = sessions_and_learned(parser, options)
    if len(sessions) < 2:
        parser.error(f"{options.recording}: {len(sessions)} session(s) to judge, 2 are needed; record more")
    print(f"{len(sessions)} recorded sessions of {options.recording.name}\n")
    print(table(sessions, options.start_s, options.runs, options.seed, learned))


if __name__ == "__main__":
    main()
