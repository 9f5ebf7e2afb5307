"""Real failures on GPUs: each has one named cause, the other cell is measured, and nothing is left on the cards.

On a machine with one GPU both ranks are on it, exchange with gloo, and what they print says so. `pytest -m ""
--scaling-devices cpu:2` causes the same on CPU ranks, and before it `taskset -c 0` on ranks that share a core.
"""

from __future__ import annotations

import os
import re

import pytest

from suite.plugin import CONFIG
from suite.room.devices import parse
from suite.room.gpus import Gpus
from tests.support import failing_on_gpus
from tests.support.project import Project

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("trainer", "cause"),
    [
        ("TakesAllMemory", "rank 1: (OutOfMemoryError: .* out of memory|RuntimeError: .*can't allocate memory)"),
        ("ReadsPastTheEnd", "rank 1: (AcceleratorError: .* device-side assert|IndexError)"),
        ("RankOneNeverComes", r"rank.* \d.*: no answer to '\w+' within \d+ s"),
    ],
)
def test_a_failure_is_named_and_leaves_nothing(
    project: Project, pytestconfig: pytest.Config, trainer: str, cause: str
) -> None:
    devices = pytestconfig.stash[CONFIG].devices
    two = "cpu:2" if devices.kind == "cpu" else ",".join((devices.names * 2)[:2])
    with Gpus(devices) as gpus:
        before = [reading.pids for reading in gpus.read()]
        result = project.pytest(
            *("-m", "scaling", "--scaling-workload", "tiny", "--scaling-devices", two),
            *("--scaling-world-sizes", "2", "--scaling-mode", "strong", "--scaling-budget", "1"),
            *("--scaling-trainer", f"{failing_on_gpus.__file__}:{trainer}", "--scaling-trainer", "ddp"),
        )
        after = [reading.pids for reading in gpus.read()]
    assert result.ret == 1
    assert project.outcomes() == {f"{trainer}-tiny-strong-2": "ERROR", "ddp-tiny-strong-2": "NO BASELINE"}
    result.stdout.re_match_lines([f".*ERROR{re.escape(parse(two).mark(2))}: {cause}"])
    assert not project.workers()
    assert all(now <= then | {os.getpid()} for now, then in zip(after, before, strict=True))
