"""One-process trainers freeze where the garbage collector makes them, and train right under stress for long."""

from __future__ import annotations

import subprocess
import sys

import pytest

from suite.checks.bench import Bench
from tests.support import on_ranks
from tests.support.deadlines import WHOLE_S
from tests.support.freezing import ONE_PROCESS
from tests.support.project import REPOSITORY


@pytest.mark.parametrize(("collect", "seconds", "status"), [([], "2", 0), (["--collect"], "50", 1)], ids=["off", "on"])
def test_trainers_freeze_with_the_collector_on_and_never_with_it_off(
    collect: list[str], seconds: str, status: int
) -> None:
    """With the collector on, each freezes, and faulthandler's watchdog prints its stacks and ends it."""
    command = [sys.executable, "-m", "tests.support.freezing", seconds, *collect]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=WHOLE_S)
    said = done.stdout.splitlines()
    assert [line for line in said if "status" in line] == [
        f"{name}: ended with status {status}" for name in ONE_PROCESS
    ]
    assert done.stderr.count("Timeout") == done.stderr.count("in map") == status * len(ONE_PROCESS)
    assert ("in get_rng_state" in done.stderr) is bool(status)


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", ONE_PROCESS)
def test_threads_that_change_all_the_time_change_no_bit_in_200_steps(
    bench: Bench, trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ranks, "CALL_S", 200.0)
    stressed = "tests.support.freezing:agrees_under_stress"
    assert on_ranks.run(bench, stressed, [1], trainer=trainer, steps=200)[1] == [True]
