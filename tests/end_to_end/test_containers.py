"""Whole runs in a pod: cores of a cpuset under a quota, little memory, no rights, and a home that is read-only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from suite.room.quiet import available_cores
from tests.support.containers import ControlGroup, needs_root, output, pod
from tests.support.project import Project, needs_two_cores

pytestmark = [*needs_root, needs_two_cores]

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


def test_a_run_in_a_pod_measures_with_what_the_pod_has(project: Project, tmp_path: Path) -> None:
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
    project: Project, memory_mb: int, devices: str, refused: str
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
