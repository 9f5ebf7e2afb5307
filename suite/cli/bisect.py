"""`python -m suite bisect`: which commit made it slow? With `--good` a whole bisection, otherwise one of its runs.

One run judges the commit that is checked out and ends as `git bisect run` understands it: 0 is good and 1 is bad. 125
skips a commit that cannot be judged: too noisy, does not build, nothing to compare with. From 128 on the bisection
ends. docs/bisect.md shows examples and derives how often a whole bisection is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest

from suite.base.git import GitError
from suite.cli import gate
from suite.cli.bisection import ABORT, BAD, ERROR, GOOD, NAMES, SKIP, GitHistory, find
from suite.cli.command import USAGE_ERROR, Stop, positive, whole_number
from suite.records.record import CellRecord, Record
from suite.run.observations import Observations
from suite.verdict import Outcome

SUMMARY = "find the commit that made it slow, or judge the one that is checked out, for `git bisect run`"
PYTEST_OPTIONS = True
ON_TIMEOUT = {"slow": BAD, "skip": SKIP, "error": ERROR}
TIMEOUT_S = 3600.0

_WITHOUT_A_RUN = {
    int(pytest.ExitCode.INTERRUPTED): "a file could not be collected",
    int(pytest.ExitCode.INTERNAL_ERROR): "pytest broke",
    int(pytest.ExitCode.USAGE_ERROR): "pytest refused its options, or the project's conftest",
    int(pytest.ExitCode.NO_TESTS_COLLECTED): "no cell was selected",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the ends of a bisection, and what a time-out means."""
    parser.add_argument("--good", metavar="REV", help="a commit before the slowdown: find the first bad one after it")
    parser.add_argument("--bad", default="HEAD", metavar="REV", help="with --good: a commit after it (default: HEAD)")
    parser.add_argument(
        "--on-timeout",
        choices=ON_TIMEOUT,
        default="skip",
        help="what a commit is that does not answer in time: slow (bad), skip, or an error that ends the bisection "
        "(default: skip)",
    )
    parser.add_argument(
        "--timeout-s",
        type=positive,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"with --good: what one run may take; a worker's own deadlines are shorter (default: {TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--runs",
        type=whole_number(),
        default=1,
        metavar="N",
        help="without --good: the runs of the bisection, which share the error probabilities (default: 1)",
    )


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Find the first bad commit, or judge one commit and say on stderr what git is told and why.

    Raises:
        Stop: a bisection has no answer.
    """
    if asked.good is not None:
        return _whole(asked, pytest_arguments)
    try:
        ended = gate.run(
            pytest_arguments, lambda settings: dataclasses.replace(settings, explain=False, runs=asked.runs)
        )
    except (Exception, SystemExit):  # a conftest that leaves; git would read the interpreter's exit status as "bad"
        traceback.print_exc()
        status, reason = SKIP, "the commit's own code ended pytest"
    else:
        late = timed_out(ended.run.observations) if ended.run else ""
        record = ended.run.record if ended.run else None
        status, reason = judge(
            ended.status, record, interrupted=ended.interrupted, late=late, on_timeout=ON_TIMEOUT[asked.on_timeout]
        )
    _say(f"{NAMES[status]} ({status}): {reason}")
    return status


def judge(
    status: int, record: Record | None, *, interrupted: bool, late: str = "", on_timeout: int = SKIP
) -> tuple[int, str]:
    """Return what `git bisect run` is to do about a commit, and why.

    One failing cell makes a commit bad, even if others have no verdict, unless only the machine fails it. A commit is
    good only when all cells pass.

    Args:
        status: pytest's exit status.
        record: of the run; None where no run began.
        interrupted: by Ctrl-C.
        late: which of the commit's workers did not answer in time, in words; empty where all did.
        on_timeout: what such a commit is.
    """
    if interrupted:
        return ABORT, "interrupted"
    if record is None:
        return SKIP, _WITHOUT_A_RUN.get(status, f"nothing was measured (pytest's exit status {status})")
    if failed := [f"{cell.id}: {cell.reason}" for cell in record.cells if _code_failed(cell)]:
        return BAD, "; ".join(failed)
    if late:
        return on_timeout, f"timed out: {late}"
    undecided = [
        f"{cell.id}: {cell.outcome.value}: {cell.reason}" for cell in record.cells if cell.outcome is not Outcome.PASS
    ]
    if undecided or not record.cells:
        return SKIP, "; ".join(undecided) or "no cell was measured"
    return GOOD, "; ".join(f"{cell.id}: {cell.reason}" for cell in record.cells)


def _code_failed(cell: CellRecord) -> bool:
    """Return whether a cell FAILs, and not by the machine alone, which is the same for every commit."""
    rules = {check.rule for check in cell.checks if check.counts and check.outcome is Outcome.FAIL}
    return cell.outcome is Outcome.FAIL and rules != {"machine"}


def timed_out(run: Observations) -> str:
    """Return which of the candidate's workers did not answer in time, in words; "" where all did."""
    late = {arm: failure for arm, failure in run.lost.items() if failure.timed_out and arm.side == "candidate"}
    return "; ".join(f"{arm.id}: {failure.cause}" for arm, failure in late.items())


def _whole(asked: argparse.Namespace, pytest_arguments: Sequence[str]) -> int:
    if any(argument.startswith("--scaling-against") for argument in pytest_arguments):
        raise Stop("--scaling-against: with --good, every commit is compared with that one; leave it out", USAGE_ERROR)
    try:
        with GitHistory(Path.cwd(), asked.good, asked.bad) as history:

            def measure(commit: str, runs: int) -> int:
                history.check_out(commit)
                own = [f"--runs={runs}", f"--on-timeout={asked.on_timeout}", f"--scaling-against=ref:{history.good}"]
                command = [sys.executable, "-m", "suite", "bisect", *pytest_arguments, *own]
                try:
                    return gate.in_own_process(command, timeout_s=asked.timeout_s)
                except subprocess.TimeoutExpired:
                    status = ON_TIMEOUT[asked.on_timeout]
                    _say(f"{NAMES[status]} ({status}): timed out: it did not end within {asked.timeout_s:g} s")
                    return status

            find(history, measure, _say)
    except GitError as error:
        raise Stop(str(error)) from error
    return 0


def _say(line: str) -> None:
    print(f"bisect: {line}", file=sys.stderr, flush=True)
