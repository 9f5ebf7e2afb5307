"""Ten thousand runs of our own rule, replayed from one recording of identical code.

    python -m docs.evidence.replay                                    # docs/evidence/recording.json
    python -m docs.evidence.replay --learned 20                       # with a calibration from the first 20 sessions
    python -m docs.evidence.replay FILE --arms two twoB --start-s 12  # a file that names its arms, without wall times

A replayed run draws whole recorded sessions with replacement, swaps the arms' labels in each by the toss of a coin, so
that nothing is slower by construction, multiplies the candidate's times by what is planted, and is fed session by
session to `suite.verdict.paired`, as a campaign does, until it is decided or as many sessions as the budget allows
are spent. What a calibration knows of the machine is learned from sessions that are not replayed.

The intervals are exact (Clopper-Pearson) for the runs drawn from this recording; that it has finitely many sessions of
one machine is not in them.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import binomtest

from docs.evidence.recording import RECORDING, RecordedSession, load
from suite import verdict
from suite.plan.config import BUDGET_S, MIN_SESSIONS
from suite.records import calibration
from suite.verdict import Learned, Middle, Outcome, Verdict, Windows
from suite.verdict.metrics import faster_half

RUNS = 10_000
START_S = 12.0  # what starting both arms takes where a recording has no wall times: LeNet, two ranks on two cores
FIXED_S = 8.0  # a run's launcher, questions about the trainers and the dataset, before its first session


@dataclass(frozen=True)
class Case:
    """What is planted, and what it is judged by."""

    planted: float
    tolerance: float = 0.05
    budget_s: float = BUDGET_S["quick"]


# A slowdown below the tolerance may pass by contract, so 3 % is asked for with a tolerance of 3 % and more time.
CASES = (
    Case(0.0),
    Case(0.10),
    Case(0.05),
    Case(0.03),
    Case(0.0, tolerance=0.03, budget_s=300.0),
    Case(0.03, tolerance=0.03, budget_s=300.0),
)


@dataclass(frozen=True)
class Replayed:
    """How the runs of a case ended: outcomes, and the mean number of sessions."""

    outcomes: Counter[Outcome]
    sessions: float

    @property
    def runs(self) -> int:
        """How many there were."""
        return self.outcomes.total()


def judge(middles: Sequence[Middle], case: Case, planned: int, session_s: float, learned: Learned | None) -> Verdict:
    """The one place that asks our rule, as `suite.run.judging` does for a run of a single cell with one base."""
    return verdict.paired(middles, case.tolerance, 1, planned, session_s, learned)


def learn(sessions: Sequence[RecordedSession]) -> Learned:
    """What `calibrate` would hand to a run of these sessions.

    Raises:
        ValueError: too few sessions; a run leans on none so small.
    """
    if len(sessions) < calibration.ENOUGH:
        raise ValueError(f"{len(sessions)} sessions to learn from: a run leans on {calibration.ENOUGH} or more")
    levels = [faster_half([math.log(value) for value in session.candidate]) for session in sessions]
    spread = calibration.spread_of([session.windows for session in sessions], levels, 0.0, 0.0)
    if spread is None:
        raise ValueError("no session to learn from has two rounds that count; record longer sessions")
    return Learned(spread.tau**2, spread.tau2_var)


def session_s(sessions: Sequence[RecordedSession], start_s: float | None) -> float:
    """Wall seconds of a session: as recorded (median), or its windows and `start_s`."""
    recorded = [session.wall_s for session in sessions if session.wall_s is not None]
    if start_s is None and len(recorded) == len(sessions):
        return statistics.median(recorded)
    return statistics.median(session.window_s for session in sessions) + (START_S if start_s is None else start_s)


def planned_sessions(budget_s: float, session_s: float) -> int:
    """Sessions that a budget allows, as `suite.run.campaign` reckons after the first one."""
    return max(MIN_SESSIONS, 1 + int((budget_s - FIXED_S - session_s) / session_s))


def replay(
    sessions: Sequence[RecordedSession],
    case: Case,
    planned: int,
    session_s: float,
    runs: int = RUNS,
    seed: int = 1,
    learned: Learned | None = None,
) -> Replayed:
    """Replay runs.

    Args:
        sessions: recorded, of identical code.
        case: what is planted, and the tolerance.
        planned: the most sessions of a run.
        session_s: wall seconds of one, which only the advice in a verdict needs.
        runs: how many.
        seed: of sessions and labels; equal for all cases, so that they differ in the plant alone.
        learned: from other sessions of the machine.
    """
    rng = random.Random(seed)
    plant = math.log1p(case.planted)
    windows = [session.windows for session in sessions]
    labels = [[(each.own, each.other) for each in windows], [(each.other, each.own) for each in windows]]
    drawn = [[Middle.of(Windows([plant + x for x in own], other)) for own, other in each] for each in labels]
    outcomes: Counter[Outcome] = Counter()
    spent = 0
    for _ in range(runs):
        seen: list[Middle] = []
        outcome = Outcome.INCONCLUSIVE
        # All draws of a run are made, also those after its end: run n has the same sessions in every case.
        for label, number in [(rng.randrange(2), rng.randrange(len(sessions))) for _ in range(planned)]:
            seen.append(drawn[label][number])
            outcome = judge(seen, case, planned, session_s, learned).outcome
            if outcome is not Outcome.INCONCLUSIVE:
                break
        outcomes[outcome] += 1
        spent += len(seen)
    return Replayed(outcomes, spent / runs)


def rate(count: int, trials: int, digits: int = 1) -> str:
    """A share in percent, with so many digits after the point, and its exact (Clopper-Pearson) 95 % interval."""
    if not trials:
        return "-"
    interval = binomtest(count, trials).proportion_ci(0.95, "exact")
    return "{:.{digits}%} [{:.{digits}%}, {:.{digits}%}]".format(count / trials, *interval, digits=digits)


def row(case: Case, found: Replayed, planned: int, session_s: float) -> str:
    """One line of the table."""
    rates = (
        rate(found.outcomes[outcome], found.runs) for outcome in (Outcome.FAIL, Outcome.PASS, Outcome.INCONCLUSIVE)
    )
    seconds = FIXED_S + found.sessions * session_s
    return (
        f"| {case.planted:.0%} | {case.tolerance:.0%} | {planned} | {found.runs} | {' | '.join(rates)} "
        f"| {found.sessions:.1f} | {seconds:.0f} |"
    )


def parser_of(description: str) -> argparse.ArgumentParser:
    """The arguments of a script that draws runs from a recording."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("recording", type=Path, nargs="?", default=RECORDING)
    parser.add_argument("--arms", nargs=2, default=("two", "twoB"), help="where the file names its arms")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs that are drawn (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start-s", type=float, help=f"a session's start (default: as recorded, or {START_S:g})")
    parser.add_argument("--learned", type=int, metavar="N", help="learn from the first N sessions, judge the others")
    return parser


def sessions_and_learned(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> tuple[list[RecordedSession], Learned | None]:
    """The sessions that are judged, and what the ones before them teach; ends the script where that cannot be had."""
    try:
        sessions = load(options.recording, options.arms)
        learned = None if options.learned is None else learn(sessions[: options.learned])
    except ValueError as error:
        parser.error(str(error))
    return sessions[options.learned or 0 :], learned


def main() -> None:
    """Replay every case and print a table."""
    parser = parser_of("Replay runs of our rule from recorded sessions of identical code.")
    parser.add_argument("--planned", type=int, help="most sessions of a run (default: what each case's budget allows)")
    options = parser.parse_args()
    sessions, learned = sessions_and_learned(parser, options)
    if not sessions:
        parser.error(f"--learned {options.learned}: no session is left to replay; the recording must have more")
    each_s = session_s(sessions, options.start_s)
    print(f"{len(sessions)} recorded sessions, {each_s:.1f} s each, {FIXED_S:.0f} s before the first")
    print(f"learned beforehand: {learned}\n")
    print("| planted | tolerance | planned sessions | runs | FAIL | PASS | INCONCLUSIVE | mean sessions | mean s |")
    print("|---|---|---|---|---|---|---|---|---|")
    start = time.perf_counter()
    for case in CASES:
        planned = options.planned or planned_sessions(case.budget_s, each_s)
        print(
            row(case, replay(sessions, case, planned, each_s, options.runs, options.seed), planned, each_s), flush=True
        )
    print(f"\nreplayed in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
