"""Whole runs from the outside: items, outcomes, exit status, files, and processes that are left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from xml.etree import ElementTree

import pytest

from suite.rank.timing import CPUS
from tests.support import trainers_under_test
from tests.support.project import REPOSITORY, Project, needs_two_cores

HERE = f"{trainers_under_test.__file__}:"


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
            "tiny runs * times as fast on 2 devices as the plain trainer on one",
            "NO BASELINE: 4 cells; *",
            " scratch tiny strong *2 *",
            "report: *",
            "accepted as baseline (1 run(s))*",
        ]
    )
    [record] = project.records()
    assert {cell.outcome for cell in record.cells} == {"NO BASELINE"}
    assert all(cell.sec_per_epoch is not None for cell in record.cells)
    assert all(cell.efficiency is not None for cell in record.cells if cell.world_size == 2)
    assert record.accuracies == (), "a second leaves no time to train"
    assert all("raise --scaling-budget" in cell.why("accuracy") for cell in record.cells)
    assert len(record.sessions[0].windows) == 2 * 4 * (1 + max(window.block for window in record.sessions[0].windows))
    counted = any(CPUS.glob("cpu0/cpuidle/state*/time"))
    assert {len(window.others_ns) for window in record.sessions[0].windows} == {int(counted)}
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
        max(w.unselected.duration_ns) / next(a.steps_per_window for a in record.arms if a.id == w.arm) / 1e9
        for session in record.sessions
        for w in session.windows
        if w.arm == "candidate:scratch:tiny:strong:2"
    ]
    assert benchmarks["scratch-tiny-strong-2"]["stats"]["data"] == pytest.approx(ours, rel=1e-6)
    assert not project.workers()


@needs_two_cores
def test_a_broken_trainer_is_an_error_and_the_others_are_measured(project: Project) -> None:
    """One rank is killed, or loses its GPU, one class lacks a part, one cannot be closed: the others are measured."""
    broken = ("KillsRankOne", "NoProcesses", "CannotClose", "RankOneAsserts", "RankOneHasNoMemoryLeft")
    trainers = [*(HERE + name for name in broken), "scratch"]
    earlier = project.path / "reports" / "machine" / "runs" / "earlier" / "record.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("untouched")
    arguments = [argument for trainer in trainers for argument in ("--scaling-trainer", trainer)]
    result = project.scaling(
        *arguments,
        *("--scaling-world-sizes", "2", "--scaling-mode", "strong", "--scaling-accept", "--scaling-budget", "1"),
    )
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=5, deselected=1, warnings=1)
    result.stdout.fnmatch_lines_random(
        [
            "*ERROR: rank 0: RuntimeError: its feed is gone*",
            "*ERROR: rank 1: its process ended with signal 9 (SIGKILL)*",
            "*ERROR: rank 1: AcceleratorError: CUDA error: device-side assert triggered*",
            "*ERROR: rank 1: OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.*",
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
    assert not project.workers()
    again = project.typed(pasted)
    again.assert_outcomes(failed=1, deselected=again.parseoutcomes()["deselected"])
    assert project.outcomes() == {"KillsRankOne-tiny-strong-2": "ERROR"}


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
        if ": epoch " in line:  # the plan has announced training before
            assert project.workers(), "while it runs, there are some"
            break
    run.send_signal(signal.Signals[name])
    run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    [record] = project.records()
    assert record.interrupted
    assert record.cut_short == ("Ctrl-C" if name == "SIGINT" else name)
    assert record.sessions[0].windows
    deadline = time.monotonic() + 10
    while project.workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not project.workers()
    assert [path.name for path in temporary.iterdir() if path.name.startswith(("scaling-", ".scaling-"))] == []
