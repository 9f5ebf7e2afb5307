"""The command `bisect`: a run's outcome as git's exit status, and commits that cannot be measured."""

from __future__ import annotations

from typing import Any

import pytest

from suite.__main__ import main
from suite.cli import bisect
from suite.processes.failure import WorkerFailure, silent
from suite.records.record import Record
from tests.support import records
from tests.support.measurements import arm, cell, run_of
from tests.support.project import Project


def run_with(*outcomes: str) -> Record:
    return records.make(cells=[records.cell(id=f"cell-{n}", outcome=o, reason="why") for n, o in enumerate(outcomes)])


def failed_by(*rules: str) -> Record:
    """A record of one cell that these rules fail."""
    checks = [{"rule": rule, "against": "it", "outcome": "FAIL", "reason": "why"} for rule in rules]
    return records.make(cells=[records.cell(id="cell-0", outcome="FAIL", reason="why", checks=checks)])


@pytest.mark.parametrize(
    ("status", "record", "expected", "reason"),
    [
        (0, run_with("PASS", "PASS"), 0, "cell-0: why; cell-1: why"),
        (1, run_with("PASS", "FAIL"), 1, "cell-1: why"),
        (1, run_with("ERROR", "FAIL", "INCONCLUSIVE"), 1, "cell-1: why"),
        (1, failed_by("machine"), 125, "cell-0: FAIL: why"),
        (1, failed_by("machine", "time"), 1, "cell-0: why"),
        (0, run_with("PASS", "INCONCLUSIVE"), 125, "cell-1: INCONCLUSIVE: why"),
        (0, run_with("NO BASELINE"), 125, "cell-0: NO BASELINE: why"),
        (1, run_with("ERROR"), 125, "cell-0: ERROR: why"),
        (0, run_with(), 125, "no cell was measured"),
        (1, None, 125, "nothing was measured (pytest's exit status 1)"),
        (2, None, 125, "a file could not be collected"),
        (3, None, 125, "pytest broke"),
        (4, None, 125, "pytest refused its options, or the project's conftest"),
        (5, None, 125, "no cell was selected"),
    ],
)
def test_outcomes_become_gits_exit_status(status: int, record: Record | None, expected: int, reason: str) -> None:
    assert bisect.judge(status, record, interrupted=False) == (expected, reason)


def test_an_interrupt_ends_the_bisection_whatever_was_measured() -> None:
    """Git goes on after any status below 128."""
    assert bisect.judge(2, run_with("FAIL"), interrupted=True) == (130, "interrupted")


@pytest.mark.parametrize(("on_timeout", "expected"), [("skip", 125), ("slow", 1), ("error", 128)])
def test_a_commit_that_timed_out_is_what_the_user_says_where_no_cell_was_slower(on_timeout: str, expected: int) -> None:
    late: dict[str, Any] = {"interrupted": False, "late": "late", "on_timeout": bisect.ON_TIMEOUT[on_timeout]}
    assert bisect.judge(1, run_with("PASS", "ERROR"), **late) == (expected, "timed out: late")
    assert bisect.judge(1, run_with("FAIL", "ERROR"), **late) == (1, "cell-0: why")


def test_only_the_commits_own_workers_count_as_timed_out() -> None:
    run = run_of(cell())
    run.lost[arm(side="base")] = silent("base", [0], "warm_up", 60.0, {})
    run.lost[arm(1)] = WorkerFailure("other", "rank 0: it raised")
    assert bisect.timed_out(run) == ""
    run.lost[arm()] = silent("own", [1], "warm_up", 60.0, {})
    assert bisect.timed_out(run).endswith("rank 1: no answer to 'warm_up' within 60 s, ended")


def test_a_commit_whose_conftest_leaves_is_skipped_and_not_called_bad(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    (project.path / "conftest.py").write_text("raise SystemExit(1)\n")
    assert main(["bisect"]) == 125
    assert capfd.readouterr().err.splitlines()[-1] == "bisect: skip (125): the commit's own code ended pytest"


def test_only_a_real_interrupt_stops_the_bisection(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    """Pytest ends with status 2 also where a file cannot be collected; git must skip such a commit."""
    (project.path / "test_broken.py").write_text("import nothing_of_that_name\n")
    assert main(["bisect", "test_broken.py"]) == 125
    assert capfd.readouterr().err.splitlines()[-1] == "bisect: skip (125): a file could not be collected"
    (project.path / "conftest.py").write_text("def pytest_collection():\n    raise KeyboardInterrupt\n")
    assert main(["bisect"]) == 130
    assert capfd.readouterr().err.splitlines()[-1] == "bisect: stop (130): interrupted"
