"""A few faults of the campaign (docs/reliability.md), in real runs: nothing is left, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs.evidence.log import read_log
from tests.support.deadlines import WHOLE_S
from tests.support.project import REPOSITORY

CASES = (
    "worker: a daemon left behind at warm-up",
    "controller: SIGKILL at record writing",
)


@pytest.mark.nightly
def test_runs_with_a_fault_end_as_they_must_and_the_next_run_works(tmp_path: Path) -> None:
    only = [argument for case in CASES for argument in ("--only", case)]
    command = [sys.executable, "-m", "tests.support.faults", "--mixed", "--log", str(tmp_path / "log"), *only]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=WHOLE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = [line["fault"] for line in read_log(tmp_path / "log")]
    assert made == [case.partition(" at ")[0] for case in CASES]
