"""`python -m suite bisect`: one commit's verdict as the exit status that `git bisect run` understands.

0 is good and 1 is bad. 125 skips a commit that cannot be judged: too noisy, does not build, nothing to compare with.
Anything above 127 ends the bisection. docs/bisect.md shows an example.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

import pytest

from suite.cli import gate
from suite.records.record import Record
from suite.verdict import Outcome

SUMMARY = "judge the commit that is checked out, for `git bisect run`"
PYTEST_OPTIONS = True
GOOD, BAD, SKIP, ABORT = 0, 1, 125, 130

_WITHOUT_A_RUN = {
    int(pytest.ExitCode.INTERRUPTED): "a file could not be collected",
    int(pytest.ExitCode.INTERNAL_ERROR): "pytest broke",
    int(pytest.ExitCode.USAGE_ERROR): "pytest refused its options, or the project's conftest",
    int(pytest.ExitCode.NO_TESTS_COLLECTED): "no cell was selected",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare nothing: all options are pytest's."""


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Measure, and say on stderr what git is told and why."""
    ended = gate.run(pytest_arguments, lambda settings: dataclasses.replace(settings, explain=False))
    status, reason = judge(ended.status, ended.run.record if ended.run else None, interrupted=ended.interrupted)
    names = {GOOD: "good", BAD: "bad", SKIP: "skip", ABORT: "stop"}
    print(f"bisect: {names[status]} ({status}): {reason}", file=sys.stderr)
    return status


def judge(status: int, record: Record | None, *, interrupted: bool) -> tuple[int, str]:
    """Return what `git bisect run` is to do about a commit, and why.

    One failing cell makes a commit bad, even if others have no verdict; a commit is good only when all cells pass.

    Args:
        status: pytest's exit status.
        record: of the run; None where no run began.
        interrupted: by Ctrl-C.
    """
    if interrupted:
        return ABORT, "interrupted"
    if record is None:
        return SKIP, _WITHOUT_A_RUN.get(status, f"nothing was measured (pytest's exit status {status})")
    if failed := [f"{cell.id}: {cell.reason}" for cell in record.cells if cell.outcome is Outcome.FAIL]:
        return BAD, "; ".join(failed)
    undecided = [
        f"{cell.id}: {cell.outcome.value}: {cell.reason}" for cell in record.cells if cell.outcome is not Outcome.PASS
    ]
    if undecided or not record.cells:
        return SKIP, "; ".join(undecided) or "no cell was measured"
    return GOOD, "; ".join(f"{cell.id}: {cell.reason}" for cell in record.cells)
