"""The accuracy gate on a loss like the book's .91 -> .73: planted by the second run's start, trained for real."""

from __future__ import annotations

import subprocess
import sys

import pytest

from suite.room.quiet import available_cores
from tests.support import one_session
from tests.support.deadlines import WHOLE_S
from tests.support.project import Project

CHAPTER = """\
[tool.scaling.workloads.chapter]
model = "tests.support.second_run:first_run"
dataset = "digits"
batch = 32
lr = 0.1
lr_rule = "linear"

[tool.scaling.workloads.chapter.accuracy]
epochs = 4
init = "default"

[tool.pytest.ini_options]
"""


@pytest.mark.nightly
@pytest.mark.skipif(len(available_cores()) < 2, reason="two CPU workers need two cores")
def test_a_start_like_the_books_second_run_turns_its_weak_cell_red(project: Project) -> None:
    """One workload's (1, 32, .1) against (2, 64, .2), by a trainer that starts anew on two devices.

    After four epochs nets on one device have learned, and those on two devices hardly: .57 lost, at least .32. After
    eight they lie further apart, and it is .39, at least .12.
    """
    (project.path / "pyproject.toml").write_text(CHAPTER)
    cell_of = ["--scaling-devices", "cpu:2", "--scaling-workload", "chapter", "--scaling-mode", "weak"]
    planted = ["--scaling-trainer", "tests.support.second_run:RedrawsWeights", "--scaling-world-sizes", "2"]
    # Nets are trained in the first session. More of them would only narrow the times, for as long as the budget lasts.
    gate = [sys.executable, "-m", "pytest", "-p", "suite.plugin", "-p", one_session.__name__]
    gate += ["--pyargs", "suite.benchmarks.test_scaling"]
    command = [*gate, "-m", "scaling", *cell_of, *planted, "--scaling-budget", "600"]
    run = subprocess.run(command, cwd=project.path, capture_output=True, text=True, timeout=WHOLE_S)
    assert run.returncode == 1, run.stdout
    [record] = project.records()
    assert [(net.mode, net.batch, net.lr) for net in record.accuracies[:2]] == [("strong", 32, 0.1), ("weak", 64, 0.2)]
    [cell] = record.cells
    [check] = cell.checks
    assert (cell.outcome, check.rule, check.against, check.outcome) == ("FAIL", "accuracy", "1 device", "FAIL")
    alone = [net.per_epoch[-1] for net in record.accuracies if net.world_size == 1]
    assert cell.accuracy is not None
    assert sum(alone) / len(alone) - cell.accuracy > 0.1
    assert all(net.loss[-1] < net.loss[0] for net in record.accuracies if net.world_size == 1)
    assert "FAIL: accuracy 0." in run.stdout
