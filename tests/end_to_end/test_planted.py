"""What was planted is found by real ranks: causes of lost time, a count, a start like that of the book's second run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from docs.evidence import counters as evidence
from docs.evidence.causes import WORKLOADS
from suite.plan import cells
from suite.plan.workloads import Workload
from suite.records.counters import not_reproducible
from suite.room.quiet import available_cores
from tests.suite.rank.test_counting import STEPS, figures
from tests.support.deadlines import WHOLE_S
from tests.support.planted_causes import VARIABLE
from tests.support.project import DATA, REPOSITORY, Project, needs_two_cores


@needs_two_cores
def test_planted_causes_have_the_largest_bars_and_bars_sum_to_the_gap(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions of real ranks: a delayed exchange, a late rank, and replicas whose work is dispatched late.

    Each cause is a sleep of several steps, so that no other process on the machine costs as much.
    """
    delay_s = 0.3
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    (project.path / "pyproject.toml").write_text(WORKLOADS)
    planted = {"DelayedExchange": "exchange", "SlowRank": "imbalance", "LateDispatch": "overhead"}
    monkeypatch.setenv(VARIABLE, json.dumps(dict.fromkeys(planted.values(), delay_s)))
    trainers = [f"--scaling-trainer=tests.support.planted_causes:{name}" for name in planted]
    result = project.pytest(
        "-m", "scaling", "-k", "test_scaling", "--scaling-devices", "cpu:2", "--scaling-world-sizes", "2",
        "--scaling-mode", "strong", "--scaling-workload", "images", "--scaling-budget", "60", *trainers,
    )  # fmt: skip
    assert result.ret == 0
    [record] = project.records()
    falls = {cells.short(each.trainer): each.waterfalls[0] for each in record.cells}
    named = {name: max(fall.bars, key=lambda bar: bar.step_s.estimate).causes for name, fall in falls.items()}
    assert named == {name: (cause,) for name, cause in planted.items()}
    for fall in falls.values():
        gap = fall.measured_s.estimate - fall.ideal_s.estimate
        assert sum(bar.step_s.estimate for bar in fall.bars) == pytest.approx(gap, rel=1e-9)
        assert fall.measured_s.estimate > delay_s, "a step is never shorter than the sleep in it"


OPTIONS = ("--scaling-world-sizes", "2", "--scaling-mode", "strong", "--scaling-budget", "20", "--scaling-against=ddp")


@needs_two_cores
def test_a_stray_item_fails_the_gate(project: Project) -> None:
    planted = f"--scaling-trainer={evidence.PLANTED}ReadsTheLoss"
    run = project.scaling(planted, *OPTIONS, "--scaling-counters", "fail")
    [record] = project.records()
    [cell] = record.cells
    checks = [check for check in cell.checks if check.rule == "counters"]
    said = "0 → 1 host-device synchronisations a step"
    assert list(cell.counters) == ["candidate", "base"]
    assert [check.reason.startswith(said) for check in checks] == [True]
    run.stdout.re_match_lines(
        [f".*FAIL: .*{said}", f".*ReadsTheLoss-tiny-strong-2: .*{said}"]
    )  # its time may FAIL, too
    assert run.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.nightly
def test_fresh_processes_count_the_same(tmp_path: Path) -> None:
    """Two groups of ranks and two processes with replicas, each started by itself."""
    (tmp_path / "data.py").write_text(DATA)
    tiny = Workload(name="tiny", model="toy", dataset=f"{tmp_path / 'data.py'}:blobs", batch=32)
    with evidence.workers(tiny) as (pool, workload, dataset):
        told = [evidence.job(trainer, workload, dataset) for trainer in ("ddp", "ddp", "scratch", "scratch")]
        groups = [pool.launch(f"fresh-{number}", job.size) for number, job in enumerate(told)]
        for group in groups:
            group.wait_connected()
        counted = [evidence.count(group, job, STEPS) for group, job in zip(groups, told, strict=True)]
    assert counted[0] == counted[1]
    assert counted[2] == counted[3]
    assert [not_reproducible(each) for each in counted] == [[]] * 4
    assert figures(counted[0])["all_reduce"]
    assert figures(counted[2])["device copy"]


ONE_SESSION = "from suite.run import schedule\n\nschedule.MAX_SESSIONS = dict.fromkeys(schedule.MAX_SESSIONS, 1)\n"
CHAPTER = """\
[tool.scaling.workloads.chapter]
model = "tests.support.planted_causes:first_run"
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
    (project.path / "one_session.py").write_text(ONE_SESSION)
    cell_of = ["--scaling-devices", "cpu:2", "--scaling-workload", "chapter", "--scaling-mode", "weak"]
    planted = ["--scaling-trainer", "tests.support.planted_causes:RedrawsWeights", "--scaling-world-sizes", "2"]
    # Nets are trained in the first session. More of them would only narrow the times, for as long as the budget lasts.
    gate = [sys.executable, "-m", "pytest", "-p", "suite.plugin", "-p", "one_session"]
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
