"""Whole runs on other machines: in a pod, with a single device, and on scenes of GPUs without a driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from suite import options
from suite.plan.cells import Cell
from suite.records.files import read_model
from suite.records.record import Record
from suite.room.errors import UNCORRECTED
from suite.room.quiet import available_cores
from suite.run.execute import Selected, execute
from tests.support.containers import ControlGroup, needs_root, output, pod
from tests.support.deadlines import WHOLE_S
from tests.support.nvml import Scene
from tests.support.project import REPOSITORY, Project, needs_two_cores

MB = 10**6
LIMIT_S = 200
PYTEST = (sys.executable, "-m", "pytest", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling")
RUN = (*PYTEST, "-m", "scaling", "--scaling-workload=tiny", "--scaling-trainer=ddp", "--scaling-mode=strong")


def limited(memory_mb: int) -> ControlGroup:
    """A quota of one core of two, and so much memory."""
    return ControlGroup(
        cpu={"cpu.cfs_quota_us": 100_000, "cpu.cfs_period_us": 100_000},
        cpuset={"cpuset.cpus": ",".join(map(str, available_cores()[:2])), "cpuset.mems": 0},
        memory={"memory.limit_in_bytes": memory_mb * MB},
    )


class TestPod:
    """Cores of a cpuset under a quota, little memory, no rights, and a home that is read-only."""

    pytestmark: ClassVar = [*needs_root, needs_two_cores]

    def test_a_run_in_a_pod_measures_with_what_the_pod_has(self, project: Project, tmp_path: Path) -> None:
        """Every process of the run has the quota, so that CPU workers are as many as it has cores: one."""
        home = tmp_path / "home"
        home.mkdir()
        project.path.chmod(0o777)
        with limited(memory_mb=2_000) as group:
            write = subprocess.run(group.command(*pod("64m", home, "touch", str(home / "file"))), capture_output=True)
            assert b"Read-only file system" in write.stderr
            command = group.command(*pod("64m", home, *RUN, "--scaling-budget=1"))
            said = output(command, timeout_s=LIMIT_S, cwd=project.path)
        assert "1 passed" in said, said
        line = "this container sees 2 cores, and its CPU quota is 1: 1 CPU worker(s); raise its CPU limit for more"
        assert f"scaling: {line}" in said
        [record] = project.records()
        assert (record.machine.problem, [cell.world_size for cell in record.cells]) == (line, [1])
        assert {conditions.cores for session in record.sessions for conditions in session.conditions} == {2}
        assert not list(home.iterdir())

    @pytest.mark.parametrize(
        ("memory_mb", "devices", "refused"),
        [
            (300, "cpu:1", "memory: 1 worker(s) take 0.4 GB at least, and this container may use 0."),
            (900, "cpu:58", "memory: 60 worker(s) take 1.5 GB at least, and this container may use 0."),
        ],
        ids=["not even one process", "not all workers"],
    )
    def test_a_run_that_does_not_fit_into_memory_is_refused_before_it_is_ended(
        self, project: Project, memory_mb: int, devices: str, refused: str
    ) -> None:
        """60 are 58 ranks of DDP, and DDP and the plain trainer on one device."""
        told = (f"--scaling-devices={devices}", f"--scaling-world-sizes={devices[4:]}", "--scaling-budget=1")
        with limited(memory_mb) as group:
            ran = subprocess.run(
                group.command(*RUN, *told), cwd=project.path, capture_output=True, text=True, timeout=LIMIT_S
            )
        assert ran.returncode == pytest.ExitCode.TESTS_FAILED
        assert f"ERROR: {refused}" in ran.stdout, ran.stdout
        assert ": there is room for " in ran.stdout
        assert "raise the container's memory limit, or choose fewer devices (--scaling-devices)" in ran.stdout
        assert not project.workers()
        assert not any(session.windows for record in project.records() for session in record.sessions)


def on_one_core() -> None:
    """Leave this process and its children one core, as `taskset` does."""
    os.sched_setaffinity(0, available_cores()[:1])


@pytest.mark.nightly
def test_a_failure_of_ranks_that_share_a_device_is_named() -> None:
    """The tests of failures on GPUs, as on a machine with one: the device of both ranks is a core here."""
    tests = ("tests/gpu/test_gpu.py", "-m", "", "-k", "TakesAllMemory", "--scaling-devices=cpu:2")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=REPOSITORY,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=WHOLE_S,
        preexec_fn=on_one_core,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_first_run_measures_one_cell_and_says_what_it_cannot_check(project: Project) -> None:
    result = project.pytest(
        "-m",
        "scaling",
        "--scaling-workload=tiny",
        "--scaling-devices=cpu:1",
        "--scaling-budget=1",
        package="suite.benchmarks",
    )
    assert result.ret == 0
    assert project.outcomes() == {"single-tiny-strong-1": "NO BASELINE"}
    [record] = project.records()
    assert [arm.id for arm in record.arms] == ["candidate:single:tiny:strong:1"]
    said = ["plan: scratch, data_parallel, ddp: as single on one device", "plan: weak: as strong on one device"]
    assert [line for line in record.plan if " as " in line][:2] == said
    assert any(line.startswith("plan: not checked: one core: ") for line in record.plan)
    result.stdout.fnmatch_lines(["Efficiency *needs 2 devices", "Exchange *not checked: one core"])


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
