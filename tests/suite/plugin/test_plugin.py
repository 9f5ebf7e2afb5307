"""Whole runs from the outside: items, outcomes, exit status, files, and processes that are left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

import conftest
import torch_scaling_suite
from suite.run import keeping
from tests.support import trainers_under_test
from tests.support.project import REPOSITORY, TINY, Project, needs_two_cores

HERE = f"{trainers_under_test.__file__}:"


def workers(project: Project) -> set[int]:
    """Running templates, launchers and workers of this project, and their reapers."""
    pids = set()
    for process in psutil.process_iter(["cmdline", "cwd"]):
        line = " ".join(process.info["cmdline"] or ())
        ours = any(name in line for name in ("suite.launch", "suite.template", "suite.worker"))
        if ours and process.info["cwd"] == str(project.path):
            pids.add(process.pid)
    return pids


@pytest.mark.end_to_end
@needs_two_cores
def test_a_first_run(project: Project) -> None:
    """NO BASELINE passes with a warning, leaves its files, and is accepted; for the next run see test_against."""
    files = ["--scaling-budget", "1", "--junitxml", "junit.xml", "--benchmark-json", "bench.json"]
    result = project.scaling("--scaling-trainer", "scratch", "--scaling-accept", *files)
    result.assert_outcomes(passed=4, deselected=1, warnings=4)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*benchmark 'scaling: *",
            " scratch tiny strong *2 *",
            "NO BASELINE: 4 cells; *",
            "report: *",
            "accepted as baseline (1 run(s))*",
        ]
    )
    [record] = project.records()
    assert {cell.outcome for cell in record.cells} == {"NO BASELINE"}
    assert all(cell.sec_per_epoch is not None for cell in record.cells)
    assert all(cell.efficiency is not None for cell in record.cells if cell.world_size == 2)
    assert record.accuracies == (), "a second leaves no time to train"
    assert all("raise --scaling-budget" in cell.accuracy_note for cell in record.cells)
    assert len(record.sessions[0].windows) == 2 * 4 * (1 + max(window.block for window in record.sessions[0].windows))
    held = [rank.resident_bytes for arm in record.arms for rank in arm.memory]
    assert len(held) == len(record.arms), "of one process, which drives both devices"
    assert all(resident is not None and resident > 10_000_000 for resident in held)
    summary = next(project.path.glob("reports/*/runs/*/summary.md")).read_text()
    assert summary.startswith("# Scaling: tiny runs ")
    assert "NO BASELINE: 4 cells" in summary
    case = (
        ElementTree.parse(project.path / "junit.xml")
        .getroot()
        .find(".//testcase[@name='test_scaling[scratch-tiny-strong-2]']")
    )
    properties = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert properties["verdict"] == "NO BASELINE"
    assert float(str(properties["efficiency"])) > 0
    benchmarks = {b["param"]: b for b in json.loads((project.path / "bench.json").read_text())["benchmarks"]}
    ours = [
        max(w.duration_ns) / next(a.steps_per_window for a in record.arms if a.id == w.arm) / 1e9
        for session in record.sessions
        for w in session.windows
        if w.arm == "candidate:scratch:tiny:strong:2"
    ]
    assert benchmarks["scratch-tiny-strong-2"]["stats"]["data"] == pytest.approx(ours, rel=1e-6)
    assert not workers(project)


@pytest.mark.end_to_end
@needs_two_cores
def test_a_broken_trainer_is_an_error_and_the_others_are_measured(project: Project) -> None:
    """One rank is killed and one class lacks a part: each is an ERROR, and the others are measured."""
    trainers = [HERE + "KillsRankOne", HERE + "NoProcesses", "scratch"]
    earlier = project.path / "reports" / "machine" / "runs" / "earlier" / "record.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("untouched")
    arguments = [argument for trainer in trainers for argument in ("--scaling-trainer", trainer)]
    result = project.scaling(
        *arguments,
        *("--scaling-world-sizes", "2", "--scaling-mode", "strong", "--scaling-accept", "--scaling-budget", "1"),
    )
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=2, deselected=1, warnings=1)
    result.stdout.fnmatch_lines_random(
        [
            "*ERROR: rank 1: its process ended with signal 9 (SIGKILL)*",
            '*ERROR: rank 0: ContractError: *`processes` is missing: processes = "one" or "per-device"*',
            "not accepted: a run with an ERROR*",
        ]
    )
    pasted = next(
        line.partition("again: ")[2] for line in result.outlines if "again: " in line and "KillsRankOne" in line
    )
    assert earlier.read_text() == "untouched"
    earlier.unlink()
    assert project.outcomes()["scratch-tiny-strong-2"] == "NO BASELINE"
    assert not list(project.path.glob("reports/*/baseline.json"))
    assert not workers(project)
    again = project.typed(pasted)
    again.assert_outcomes(failed=1, deselected=again.parseoutcomes()["deselected"])
    assert project.outcomes() == {"KillsRankOne-tiny-strong-2": "ERROR"}


@pytest.mark.end_to_end
@needs_two_cores
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_keeps_what_was_measured_and_leaves_nothing(project: Project, name: str) -> None:
    arguments = ["-p", "suite.plugin", "--pyargs", "suite.benchmarks", "-m", "scaling", "--scaling-workload", "tiny"]
    temporary = project.path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary)}
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments, "--scaling-devices", "cpu:1", "--scaling-trainer", "scratch"],
        cwd=project.path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        # A shell's background job ignores SIGINT, and so would this.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    for line in run.stdout:
        if "training" in line:
            assert workers(project), "while it runs, there are some"
            break
    run.send_signal(signal.Signals[name])
    run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    [record] = project.records()
    assert record.interrupted
    assert record.cut_short == ("Ctrl-C" if name == "SIGINT" else name)
    assert record.sessions[0].windows
    deadline = time.monotonic() + 10
    while workers(project) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not workers(project)
    assert [path.name for path in temporary.iterdir() if path.name.startswith(("scaling-", ".scaling-"))] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "gpu"], "CUDA: 0 device(s) found, 1 needed; check the driver"),
        (["-m", "gpu", "--scaling-devices", "cuda:1"], "CUDA: 0 device(s) found, 1 needed; check the driver"),
        (["-m", "scaling", "--scaling-devices", "cuda"], "CUDA: 0 device(s) found, 1 needed; check the driver"),
        ([*TINY, "--scaling-require-devices", "3"], "CPU: 2 device(s) found, 3 needed; lower"),
    ],
)
def test_missing_devices_are_one_failing_item(
    project: Project, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = project.inline(*arguments)
    result.assert_outcomes(failed=1, deselected=result.parseoutcomes().get("deselected", 0))
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*{message}*"])


def test_nothing_is_timed_under_xdist(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.path / "fake_xdist.py").write_text("def pytest_configure(config):\n    config.workerinput = {}\n")
    monkeypatch.syspath_prepend(project.path)
    result = project.inline(*TINY, "-p", "fake_xdist")
    result.assert_outcomes(failed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*not timed under xdist*drop -n*"])


def test_cells_have_no_timeout_because_the_first_one_measures_for_all(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.path)
    (project.path / "spy.py").write_text(
        "def pytest_collection_finish(session):\n"
        "    print({item.get_closest_marker('timeout').args for item in session.items})\n"
    )
    result = project.inline(*TINY, "--collect-only", "-q", "-p", "spy", "--timeout=1")
    result.stdout.fnmatch_lines(["{(0,)}"])


def test_one_pytest_item_a_cell(project: Project) -> None:
    result = project.inline(*TINY, "--collect-only", "-q", "-k", "ddp and weak")
    result.stdout.fnmatch_lines(["*test_scaling[[]ddp-tiny-weak-1[]]", "*test_scaling[[]ddp-tiny-weak-2[]]"])


def test_only_what_a_trainer_can_train_is_collected(project: Project) -> None:
    """Images and texts are measured beside one another, each by its own trainers."""
    options = ["--scaling-world-sizes=1", "--scaling-mode=weak", "--scaling-workload=lenet,gpt-tiny"]
    of = [*options, "--scaling-trainer=ddp,ddp_tokens,single"]
    cells = project.inline("--collect-only", "-q", *of)
    expected = ["ddp-lenet", "single-lenet", "ddp_tokens-gpt-tiny", "single-gpt-tiny"]
    assert [line[line.index("[") :] for line in cells.outlines if "test_scaling[" in line] == [
        f"[{name}-weak-1]" for name in expected
    ]


def test_cells_are_timed_before_tests_that_may_use_gpus_in_this_process(project: Project) -> None:
    """Such a test leaves a context and cached memory there."""
    (project.path / "test_mine.py").write_text("def test_mine(): ...\n")
    both = ("suite.benchmarks.test_scaling", "-k", "mine or (ddp and weak)", "--collect-only", "-q")
    result = project.inline(*TINY[2:], "-m", "", *both, package="test_mine.py")
    result.stdout.fnmatch_lines(["*test_scaling[[]ddp-tiny-weak-2[]]", "*test_mine"])


@pytest.mark.parametrize("arguments", [["--help"], ["--collect-only", "-m", "scaling"]], ids=" ".join)
def test_help_and_collecting_load_no_torch(project: Project, arguments: list[str]) -> None:
    (project.path / "spy.py").write_text(
        "import sys\ndef pytest_unconfigure(config):\n    print('torch loaded:', 'torch' in sys.modules)\n"
    )
    result = project.pytest(*arguments, "-p", "spy")
    result.stdout.fnmatch_lines(["torch loaded: False"])


def test_neither_the_commands_nor_the_controller_of_checks_load_torch() -> None:
    code = "import sys; import suite.__main__, suite.checks.bench, suite.checks.draw; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


def test_the_entry_point_loads_the_plugin_by_the_name_the_conftest_asks_for() -> None:
    """So that pytest sees one plugin where the distribution is installed in a clone."""
    assert 'torch_scaling_suite = "torch_scaling_suite"' in (REPOSITORY / "pyproject.toml").read_text()
    assert torch_scaling_suite.pytest_plugins == ["suite.plugin"]
    assert "suite.plugin" in conftest.pytest_plugins


def test_two_runs_of_one_second_do_not_share_a_folder(tmp_path: Path) -> None:
    folders = [keeping.new_folder(tmp_path / "runs" / "20260101T000000Z-abc") for _ in range(3)]
    assert [folder.name for folder in folders] == [f"20260101T000000Z-abc{suffix}" for suffix in ("", "-2", "-3")]


def test_an_unwritable_report_folder_is_an_error_before_anything_is_measured(project: Project) -> None:
    (project.path / "file").write_text("in the way")
    result = project.inline(
        *TINY, "--scaling-report-dir=file", "--scaling-trainer", "single", "--scaling-world-sizes", "1"
    )
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*ERROR: *file*Not a directory*choose another --scaling-report-dir*"])
