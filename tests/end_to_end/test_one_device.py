"""Whole runs with a single device: what they read and print there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from suite.room.quiet import available_cores
from tests.support.deadlines import WHOLE_S
from tests.support.project import REPOSITORY, Project


def on_one_core() -> None:
    """Leave this process and its children one core, as `taskset` does."""
    os.sched_setaffinity(0, available_cores()[:1])


@pytest.mark.nightly
def test_a_failure_of_ranks_that_share_a_device_is_named() -> None:
    """The tests of failures on GPUs, as on a machine with one: the device of both ranks is a core here."""
    tests = ("tests/gpu/test_failures.py", "-m", "", "-k", "TakesAllMemory", "--scaling-devices=cpu:2")
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
