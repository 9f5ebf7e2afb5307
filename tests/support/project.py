"""A user's project in a temporary folder, for tests that run pytest with the plugin as a user would."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from suite import options
from suite.plan.config import Config
from suite.records.files import read_model
from suite.records.record import Record
from suite.room.quiet import available_cores
from tests.support import deadlines

REPOSITORY = Path(__file__).parents[2]
needs_two_cores = pytest.mark.skipif(len(available_cores()) < 2, reason="two CPU workers need two cores")

PYPROJECT = """\
[tool.scaling.workloads.tiny]
model = "toy"
dataset = "data.py:blobs"
batch = 32
lr = 0.1

[tool.scaling.workloads.tiny.accuracy]
dataset = "data.py:blobs"
init = "default"
epochs = 2

[tool.pytest.ini_options]
"""

TINY = ("-m", "scaling", "--scaling-workload", "tiny", "--scaling-devices", "cpu:2")
ONE_CELL = ("--scaling-world-sizes", "1", "--scaling-mode", "strong", "--scaling-budget", "1")

# The plugin is in this process already, which pytest warns of.
LOADED = ("-p", "suite.plugin", "-W", "ignore:Module already imported so cannot be rewritten")

DATA = """\
import torch

def blobs():
    y = torch.arange(256) % 2
    X = torch.randn(256, 5, generator=torch.Generator().manual_seed(0)) + 3 * (2 * y[:, None] - 1)
    return (X[:192], y[:192]), (X[192:], y[192:])
"""


def run_suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m suite` in a folder, in a process of its own."""
    command = [sys.executable, "-m", "suite", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    kept = {"cwd": folder, "env": environment, "timeout": deadlines.WHOLE_S}
    return subprocess.run(command, capture_output=True, text=True, **kept)


class Project:
    """Runs pytest on the suite's own benchmarks from inside the temporary project, in a process of its own.

    Args:
        pytester: makes the folder.
        monkeypatch: of the test.
        limit_s: for a process; None for none.
    """

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, limit_s: float | None) -> None:
        self.path = pytester.path
        self._pytester, self._limit_s = pytester, limit_s
        monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
        monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)  # a job of our own wants its own summary
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # next to which pytest-benchmark shows no table
        (self.path / "data.py").write_text(DATA)
        self.ini()

    def ini(self, **settings: str) -> None:
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        (self.path / "pyproject.toml").write_text(PYPROJECT + lines)

    def pytest(self, *arguments: str, package: str = "suite.benchmarks.test_scaling") -> pytest.RunResult:
        """Run `pytest --pyargs` with the plugin loaded as an installed one is."""
        return self._subprocess("--pyargs", package, *arguments)

    def typed(self, command: str) -> pytest.RunResult:
        """Run a `pytest` command that was printed."""
        pytest_, *arguments = shlex.split(command)
        assert pytest_ == "pytest"
        return self._subprocess(*arguments)

    def inline(self, *arguments: str, package: str = "suite.benchmarks.test_scaling") -> pytest.RunResult:
        """Run as `pytest` does, but in this process, in a tenth of the time; for runs without workers."""
        # Its plugin for faulthandler would end the deadline of the test that calls this.
        return self._pytester.runpytest_inprocess("-p", "no:faulthandler", "--pyargs", package, *LOADED, *arguments)

    def correctness(self, *arguments: str) -> pytest.RunResult:
        return self.pytest("-m", "correctness", *arguments, package="suite.checks")

    def collected(self, *arguments: str, package: str = "suite.benchmarks.test_scaling") -> list[str]:
        """Return the names of the items that a run has."""
        listed = self.inline("--collect-only", "-q", *arguments, package=package)
        return [line.rpartition("::")[2] for line in listed.outlines if "::" in line]

    def config(self, *arguments: str) -> pytest.Config:
        """Return the configuration that pytest has with these arguments, without a run."""
        return self._pytester.parseconfig("-p", "suite.plugin", *arguments)

    def settings(self, *arguments: str) -> Config:
        """Return the effective settings of a run with these arguments; a pytest.UsageError where one is wrong."""
        return options.read(self.config(*arguments))

    def scaling(self, *arguments: str) -> pytest.RunResult:
        """Run the cells of the tiny workload on two CPU workers."""
        return self.pytest(*TINY, *arguments)

    def records(self) -> list[Record]:
        return [read_model(path, Record) for path in sorted(self.path.glob("reports/*/runs/*/record.json"))]

    def workers(self) -> set[int]:
        """Return the pids of running templates, launchers and workers of this project, and their reapers."""
        pids = set()
        for process in psutil.process_iter(["cmdline", "cwd"]):
            line = " ".join(process.info["cmdline"] or ())
            ours = any(name in line for name in ("suite.launch", "suite.template", "suite.worker"))
            if ours and process.info["cwd"] == str(self.path):
                pids.add(process.pid)
        return pids

    def outcomes(self) -> dict[str, Any]:
        return {cell.id: cell.outcome.value for cell in self.records()[-1].cells}

    def _subprocess(self, *arguments: str) -> pytest.RunResult:
        return self._pytester.runpytest_subprocess("-p", "suite.plugin", *arguments, timeout=self._limit_s)
