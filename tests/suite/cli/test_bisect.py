"""The command `bisect`: a run's outcome as git's exit status, and a slow commit found in a small repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suite.__main__ import main
from suite.cli import bisect
from suite.processes.failure import WorkerFailure, silent
from suite.records.record import Record
from tests.support import records
from tests.support.measurements import arm, cell, run_of
from tests.support.project import DATA, PYPROJECT, REPOSITORY, Project, run_suite
from tests.support.repositories import Repository

# By hand, because torch.optim loads torch's compiler, for seconds of every session.
TRAIN = """\
import time

import torch
import torch.nn.functional as F


class Mine:
    processes = "one"

    def __init__(self, model, devices, *, lr):
        self.net, self.lr = model.to(devices[0]), lr

    def step(self, X, y, global_batch_size):
        loss = F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size
        parameters = list(self.net.parameters())
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                parameter -= self.lr * gradient
        {extra}

    @property
    def replicas(self):
        return [self.net]
"""
FAST = TRAIN.format(extra="# nothing more")
SLOW = TRAIN.format(extra="time.sleep(0.001)")


def run_with(*outcomes: str) -> Record:
    return records.make(cells=[records.cell(id=f"cell-{n}", outcome=o, reason="why") for n, o in enumerate(outcomes)])


@pytest.mark.parametrize(
    ("status", "record", "expected", "reason"),
    [
        (0, run_with("PASS", "PASS"), 0, "cell-0: why; cell-1: why"),
        (1, run_with("PASS", "FAIL"), 1, "cell-1: why"),
        (1, run_with("ERROR", "FAIL", "INCONCLUSIVE"), 1, "cell-1: why"),
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


@pytest.mark.end_to_end
def test_a_bisection_names_the_slow_commit(tmp_path: Path) -> None:
    """Four real runs: the good end, the bad one, and both again, because the only commit between them is the answer."""
    repository = Repository(tmp_path / "project")
    project = {"pyproject.toml": PYPROJECT, "data.py": DATA, ".gitignore": "reports/\n__pycache__/\n"}
    repository.commit({**project, "train.py": FAST})
    repository.git("tag", "v1.0")
    slow = repository.commit({"train.py": SLOW})
    # One device, and a tolerance that a busy machine's noise stays below; the sleep is many times the step.
    one = ["--scaling-trainer", "train.py:Mine", "--scaling-workload", "tiny", "--scaling-devices", "cpu:1"]
    quick = ["--scaling-mode", "strong", "--scaling-tolerance", "1", "--scaling-budget", "100"]
    done = run_suite(repository.path, "bisect", "--good", "v1.0", *one, *quick)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert f"bisect: {slow} is the first bad commit" in said
    assert said.count("bisect: bad (1): Mine-tiny-strong-1: ") == 2, said
    assert said.count("bisect: good (0): Mine-tiny-strong-1: ") == 2, said
    assert "4 checks can fail in a bisection of at most 4 runs" in said
    assert repository.git("symbolic-ref", "--short", "HEAD") == "main"
    assert not repository.git("status", "--porcelain"), "records are where .gitignore expects them"
    assert len(list(repository.path.glob("reports/*/runs/*/record.json"))) == 4


def test_a_run_that_takes_too_long_is_ended_and_counts_as_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    repository = Repository(tmp_path / "project")
    repository.commit({"conftest.py": "import time\ntime.sleep(60)\n"})
    repository.git("tag", "v1.0")
    repository.commit()
    monkeypatch.chdir(repository.path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    assert main(["bisect", "--good", "v1.0", "--timeout-s", "0.5", "--on-timeout", "slow"]) == 1
    said = capfd.readouterr().err
    assert "bisect: bad (1): timed out: it did not end within 0.5 s" in said
    assert "the good end" in said.splitlines()[-1]
    assert repository.git("symbolic-ref", "--short", "HEAD") == "main"


def test_a_commit_whose_conftest_leaves_is_skipped_and_not_called_bad(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    (project.path / "conftest.py").write_text("raise SystemExit(1)\n")
    assert main(["bisect"]) == 125
    assert capfd.readouterr().err.splitlines()[-1] == "bisect: skip (125): the commit's own code ended pytest"


def test_the_base_of_a_whole_bisection_is_its_good_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", "--good", "v1.0", "--scaling-against=ref:v0.9"]) == 4
    assert (
        "--scaling-against: with --good, every commit is compared with that one; leave it out"
        in capsys.readouterr().err
    )


def test_only_a_real_interrupt_stops_the_bisection(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    """Pytest ends with status 2 also where a file cannot be collected; git must skip such a commit."""
    (project.path / "test_broken.py").write_text("import nothing_of_that_name\n")
    assert main(["bisect", "test_broken.py"]) == 125
    assert capfd.readouterr().err.splitlines()[-1] == "bisect: skip (125): a file could not be collected"
    (project.path / "conftest.py").write_text("def pytest_collection():\n    raise KeyboardInterrupt\n")
    assert main(["bisect"]) == 130
    assert capfd.readouterr().err.splitlines()[-1] == "bisect: stop (130): interrupted"
