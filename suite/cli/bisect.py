"""`python -m suite bisect`: judge the commit that is checked out, for `git bisect run`.

It ends as git understands it: 0 is good, 1 is bad, and 125 skips a commit that cannot be judged (too noisy, does not
build, nothing to compare with). From 128 on the bisection ends.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import traceback

import pytest

from suite.cli import pytest_run
from suite.records.record import CellRecord, Record
from suite.run.observations import Observations
from suite.verdict import Outcome

SUMMARY = "judge the commit that is checked out, for `git bisect run`"
PYTEST_OPTIONS = True
GOOD, BAD, SKIP, ERROR, STOP = 0, 1, 125, 128, 130
NAMES = {GOOD: "good", BAD: "bad", SKIP: "skip", ERROR: "error", STOP: "stop"}
ON_TIMEOUT = {"slow": BAD, "skip": SKIP, "error": ERROR}

_WITHOUT_A_RUN = {
    int(pytest.ExitCode.INTERRUPTED): "a file could not be collected",
    int(pytest.ExitCode.INTERNAL_ERROR): "pytest broke",
    int(pytest.ExitCode.USAGE_ERROR): "pytest refused its options, or the project's conftest",
    int(pytest.ExitCode.NO_TESTS_COLLECTED): "no cell was selected",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what a time-out means."""
    parser.add_argument(
        "--on-timeout",
        choices=ON_TIMEOUT,
        default="skip",
        help="what a commit is whose worker does not answer in time: slow (bad), skip, or an error that ends the "
        "bisection (default: skip)",
    )


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Judge the commit, and say on stderr what git is told and why."""
    try:
        ended = pytest_run.run(pytest_arguments, lambda settings: dataclasses.replace(settings, explain=False))
    except (Exception, SystemExit):  # a conftest that leaves; git would read the interpreter's exit status as "bad"
        traceback.print_exc()
        status, reason = SKIP, "the commit's own code ended pytest"
    else:
        late = timed_out(ended.run.observations) if ended.run else ""
        record = ended.run.record if ended.run else None
        status, reason = judge(
            ended.status, record, interrupted=ended.interrupted, late=late, on_timeout=ON_TIMEOUT[asked.on_timeout]
        )
    print(f"bisect: {NAMES[status]} ({status}): {reason}", file=sys.stderr, flush=True)
    return status


def judge(
    status: int, record: Record | None, *, interrupted: bool, late: str = "", on_timeout: int = SKIP
) -> tuple[int, str]:
    """Return what `git bisect run` is to do about a commit, and why.

    One failing cell makes a commit bad, even if others have no verdict, unless only the machine fails it. A commit is
    good only when all cells pass.

    Args:
        status: pytest's exit status.
        record: None where no run began.
        interrupted: by Ctrl-C.
        late: which of the commit's workers did not answer in time, in words; empty where all did.
        on_timeout: what such a commit is.
    """
    if interrupted:
        return STOP, "interrupted"
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
