"""Whole runs on scenes of GPUs (tests/suite/run/test_machine.py), without a driver."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from suite import options
from suite.plan.cells import Cell
from suite.records.files import read_model
from suite.records.record import Record
from suite.room.errors import UNCORRECTED
from suite.run.execute import Selected, execute
from tests.support.nvml import Scene
from tests.support.project import Project


def test_a_run_that_torch_cannot_make_keeps_what_nvml_shows(
    gpus: Callable[..., Scene], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real workers; without a driver every cell is an ERROR, and the files have the machine nevertheless."""
    gpus().say(1, uncorrected=2)
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    asked = ("--scaling-devices", "cuda:1,cuda:1", "--scaling-workload", "tiny", "--scaling-budget", "1")
    said: list[str] = []
    result = execute(
        options.read(project.config(*asked)), Selected([Cell("scratch", "tiny", "strong", 2)]), said.append
    )
    kept = read_model(result.folder / "record.json", Record)
    assert kept.machine.gpu_topology == "SYS"
    assert [card.uncorrected for card in kept.machine.cards] == [0, 2]
    assert kept.environment.variables["NCCL_ALGO"] == "Ring"
    sentence = f"GPU 1 has had 2 uncorrected memory error(s) since the driver was loaded; {UNCORRECTED}"
    assert sentence in said
    for page in ("summary.md", "report.html"):
        text = (result.folder / page).read_text()
        assert sentence in text
        assert "NCCL_ALGO=Ring" in text


def test_a_mismatch_is_one_failing_item_before_anything_is_measured(
    project: Project, scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real worker, whose torch finds no driver here; on a machine with GPUs it shows those."""
    scene(8).say("library", driver="470.82.01").export(monkeypatch)
    (project.path / "test_own.py").write_text("def test_own():\n    pass\n")
    result = project.pytest(
        "test_own.py", "-m", "", "--scaling-devices", "cuda", "--scaling-trainer", "ddp", package="suite.benchmarks"
    )
    result.stdout.fnmatch_lines(["scaling: devices cuda:8, world sizes 1, 2, 4, 8, *"])
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["test_own.py .*"])
    (said,) = [line for line in result.outlines if line.startswith("CUDA: ")]
    old = r"0: driver 470\.82\.01 is too old for CUDA [\d.]+, which needs driver 5\d\d or newer; update the driver"
    others = r"[1-9]\d*; compare the driver \(nvidia-smi\) .*"
    assert re.fullmatch(rf"CUDA: NVML shows 8 GPU\(s\), torch \S+ in a worker shows ({old}|{others})", said), said
    assert not project.records()


def test_a_cancelled_confirmation_ends_its_worker_and_leaves_no_folder(
    project: Project, scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While its worker loads torch."""
    scene(1).export(monkeypatch)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    command = [sys.executable, "-m", "pytest", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling"]
    command += ["-m", "gpu", "--scaling-devices=cuda:1", "--scaling-trainer=ddp"]
    running = subprocess.Popen(command, cwd=project.path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(temporary.glob("scaling-*/launcher-0.stderr")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)  # until it waits for the worker
    running.terminate()
    assert running.wait(60) == pytest.ExitCode.INTERRUPTED
    assert not list(temporary.glob("scaling-*"))
