"""Bases and baselines that cannot serve, and floors without any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from suite.records import baselines
from tests.support import stand_in
from tests.support.accepted import an_hour_an_epoch
from tests.support.project import ONE_CELL, TINY, Project
from tests.support.repositories import Repository


def test_a_base_that_cannot_serve_ends_pytest_before_anything_is_measured(project: Project, tmp_path: Path) -> None:
    Repository(project.path).commit()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    bare = tmp_path / "bare" / "bin" / "python"
    for against, says in (
        (str(bare), f"*--scaling-against '{bare}': *lacks torch and numpy; {bare} -m pip install torch numpy*"),
        ("ref:v9.9", "*--scaling-against 'ref:v9.9': 'v9.9' names no commit of the repository*"),
    ):
        result = project.inline(*TINY, "--scaling-trainer", "scratch", f"--scaling-against={against}", *ONE_CELL)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([says])
    assert not (project.path / "reports").exists()


@pytest.mark.parametrize("broken", [True, False])
def test_a_broken_or_foreign_baseline_is_an_error_before_anything_is_measured(project: Project, broken: bool) -> None:
    baseline = an_hour_an_epoch(project)
    path = baselines.write(baseline, project.path / "reports")
    foreign = baseline.model_copy(update={"machine_key": "cpu-64xanother-00000000"})
    text = "{" if broken else foreign.model_dump_json()
    path.write_text(text)
    result = project.inline(*TINY, "--scaling-trainer", "scratch", "--scaling-accept", *ONE_CELL)
    assert result.ret == 1
    result.assert_outcomes(failed=1, deselected=1)
    assert "exception" not in result.stdout.str(), "one message"
    message = "not a whole JSON file" if broken else f"it is the baseline of machine {foreign.machine_key}, not of "
    result.stdout.fnmatch_lines([f"*ERROR: *baseline.json: {message}*"])
    assert project.records() == []
    assert path.read_text() == text


@pytest.mark.usefixtures("two_cores")
def test_a_floor_fails_a_cell_without_any_baseline(project: Project) -> None:
    """Of two cells with the same efficiency, the one whose floor is above it fails."""
    assert 0.7 < stand_in.EFFICIENCY < 0.9
    with (project.path / "pyproject.toml").open("a") as file:
        for mode, efficiency in (("strong", 0.9), ("weak", 0.7)):
            file.write(f'\n[[tool.scaling.floors]]\nmode = "{mode}"\nworld_size = 2\nefficiency = {efficiency}\n')
    cells = ("--scaling-devices", "cpu:2", "--scaling-trainer", "scratch", "--scaling-world-sizes", "2")
    result = project.inline("-m", "scaling", "-p", stand_in.__name__, *cells, "-k", "lenet")
    assert result.ret == 1
    assert project.outcomes() == {"scratch-lenet-strong-2": "FAIL", "scratch-lenet-weak-2": "NO BASELINE"}
    [record] = project.records()
    floors = [check for cell in record.cells for check in cell.checks if check.rule == "floor"]
    assert [(check.against, check.outcome) for check in floors] == [
        ("efficiency 0.9", "FAIL"),
        ("efficiency 0.7", "PASS"),
    ]
    result.stdout.fnmatch_lines(["FAIL: efficiency *floor 0.90: below it (99% confidence)"])
