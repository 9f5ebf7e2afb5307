"""The command `bisect`: a run's outcome as git's exit status, and a slow commit found in a small repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.__main__ import main
from suite.cli import bisect
from suite.records.record import Record
from tests.support import records
from tests.support.project import DATA, PYPROJECT, REPOSITORY, Project
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
    status, reason = bisect.judge(2, run_with("FAIL"), interrupted=True)
    assert (status, reason) == (130, "interrupted")
    assert status > 127, "git goes on after anything below"


@pytest.mark.end_to_end
def test_git_bisect_names_the_slow_commit(tmp_path: Path) -> None:
    """Six commits, of which one sleeps and one has lost its trainer; only the commit that sleeps is named."""
    repository = Repository(tmp_path / "project")
    project = {"pyproject.toml": PYPROJECT, "data.py": DATA, ".gitignore": "reports/\n__pycache__/\n"}
    repository.commit({**project, "train.py": FAST})
    repository.git("tag", "v1.0")
    repository.commit({"README.md": "a word\n"})
    (repository.path / "train.py").unlink()
    repository.commit()
    repository.commit({"train.py": FAST, "README.md": "two words\n"})
    slow = repository.commit({"train.py": SLOW})
    repository.commit({"README.md": "three words\n"})
    # One device, and a tolerance that a busy machine's noise stays below; the sleep is many times the step.
    cell = ["--scaling-trainer", "train.py:Mine", "--scaling-workload", "tiny", "--scaling-devices", "cpu:1"]
    quick = ["--scaling-mode", "strong", "--scaling-tolerance", "1", "--scaling-budget", "75"]
    repository.git("bisect", "start", "HEAD", "v1.0")
    done = subprocess.run(
        [
            "git",
            "bisect",
            "run",
            sys.executable,
            "-m",
            "suite",
            "bisect",
            *cell,
            *quick,
            "--scaling-against",
            "ref:v1.0",
        ],
        cwd=repository.path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=580,
    )
    said = done.stdout + done.stderr
    assert f"{slow} is the first bad commit" in said, said
    assert "bisect: bad (1): Mine-tiny-strong-1: " in said
    assert "bisect: good (0): Mine-tiny-strong-1: " in said
    assert "bisect: skip (125): pytest refused its options, or the project's conftest" in said
    assert "there is no file train.py" in said
    assert not repository.git("status", "--porcelain"), "records are where .gitignore expects them"
    assert len(list(repository.path.glob("reports/*/runs/*/record.json"))) == 2


def test_only_a_real_interrupt_stops_the_bisection(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    """Pytest ends with status 2 also where a file cannot be collected; git must skip such a commit."""
    (project.path / "test_broken.py").write_text("import nothing_of_that_name\n")
    assert main(["bisect", "test_broken.py"]) == 125
    assert capfd.readouterr().err.splitlines()[-1] == "bisect: skip (125): a file could not be collected"
    (project.path / "conftest.py").write_text("def pytest_collection():\n    raise KeyboardInterrupt\n")
    assert main(["bisect"]) == 130
    assert capfd.readouterr().err.splitlines()[-1] == "bisect: stop (130): interrupted"
