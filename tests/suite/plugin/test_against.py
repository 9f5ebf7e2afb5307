"""Whole runs beside a base, against a stored baseline and against floors, and their errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from suite.plan import workloads
from suite.records import baselines
from suite.records.baselines import AcceptedCell, AcceptedRun, Baseline
from suite.records.record import Environment
from suite.room import devices
from suite.run import machine
from tests.support import stand_in
from tests.support.project import TINY, Project
from tests.support.repositories import Repository

# A second of budget leaves one session for each part of a run; what more of them decide is shown by test_bisect.
ONE_CELL = ("--scaling-world-sizes", "1", "--scaling-mode", "strong", "--scaling-budget", "1")

TRAINER = """\
import time
from reference.trainers.scratch import Scratch

class {name}(Scratch):
    def step(self, X, y, global_batch_size):
        start = time.perf_counter()
        loss = super().step(X, y, global_batch_size)
        end = time.perf_counter() + {share} * (time.perf_counter() - start)
        while time.perf_counter() < end:
            pass
        return loss
"""


def trainer(name: str, share: float = 0.0) -> str:
    """A file with a trainer whose steps take longer by a share."""
    return TRAINER.format(name=name, share=share)


@pytest.fixture
def repository(project: Project) -> Repository:
    """The project folder as a repository, with nothing committed."""
    made = Repository(project.path / "made")
    (made.path / ".git").rename(project.path / ".git")
    made.path.rmdir()
    made.path = project.path
    return made


@pytest.fixture
def baseline(project: Project) -> Baseline:
    """One accepted run of the tiny workload here: an hour an epoch, of an unknown commit. Not written yet."""
    tiny = workloads.available(project.path / "pyproject.toml")["tiny"]
    about = machine.describe(devices.parse("cpu:2"))
    kept = AcceptedCell(
        trainer="scratch",
        workload="tiny",
        workload_hash=tiny.hash,
        mode="strong",
        world_size=1,
        dataset="data.py:blobs",
        sec_per_epoch=3600.0,
        sessions=4,
        log_se=0.01,
    )
    environment = Environment(versions={}, commit="unknown", dirty=False)
    run = AcceptedRun(run_id="accepted", host=about.host, environment=environment, cells=(kept,))
    return Baseline(machine_key=about.key, runs=(run,))


@pytest.mark.end_to_end
def test_a_commit_is_measured_beside_an_older_one_and_missing_trainers_are_errors(
    project: Project, repository: Repository
) -> None:
    """One run: a trainer that became slower, and three that the older commit does not have, for different reasons."""
    repository.commit(
        {
            "slow.py": trainer("Slow"),
            "broken.py": "class Broken(:\n",
            "missing.py": trainer("Other"),
        }
    )
    repository.commit(
        {
            "slow.py": trainer("Slow", 0.6),
            "broken.py": trainer("Broken"),
            "missing.py": trainer("Missing"),
            "new.py": trainer("New"),
        }
    )
    specs = ("slow.py:Slow", "broken.py:Broken", "missing.py:Missing", "new.py:New")
    chosen = [argument for spec in specs for argument in ("--scaling-trainer", spec)]
    result = project.scaling(*chosen, "--scaling-against", "HEAD~1", *ONE_CELL)
    assert result.ret == 1
    result.assert_outcomes(failed=3, skipped=1, deselected=1)
    assert project.outcomes() == {
        "Slow-tiny-strong-1": "INCONCLUSIVE",  # one session decides nothing
        **{f"{name}-tiny-strong-1": "ERROR" for name in ("Broken", "Missing", "New")},
    }
    [record] = project.records()
    older = repository.git("rev-parse", "HEAD~1")
    assert record.against == f"HEAD~1 ({older[:7]})"
    assert [(base.side, base.kind, base.commit) for base in record.bases] == [("base", "ref", older)]
    assert [(check.rule, check.against) for check in record.cells[0].checks] == [
        ("time", record.against),
        ("counters", record.against),
    ]
    assert record.cells[0].slowdown is not None
    assert record.cells[0].slowdown.estimate > 1.05, "each side ran its own commit's code"
    result.stdout.fnmatch_lines_random(
        [
            f"*compared with HEAD~1 ({older[:7]}), in the same sessions*",
            "*ERROR: *SyntaxError*broken.py*",
            "*ERROR: *missing.py*Missing*",
            f"*ERROR: 'new.py:New': HEAD~1 ({older[:7]}) has no file new.py*compare with a commit that has it*",
        ]
    )


def test_a_base_that_cannot_serve_ends_pytest_before_anything_is_measured(
    project: Project, repository: Repository, tmp_path: Path
) -> None:
    repository.commit()
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
def test_a_broken_or_foreign_baseline_is_an_error_before_anything_is_measured(
    project: Project, baseline: Baseline, broken: bool
) -> None:
    path = baselines.write(baseline, project.path / "reports")
    foreign = baseline.model_copy(update={"machine_key": "cpu-64xanother-00000000"})
    text = "{" if broken else foreign.model_dump_json()
    path.write_text(text)
    result = project.inline(*TINY, "--scaling-trainer", "scratch", "--scaling-accept", *ONE_CELL)
    assert result.ret == 1
    result.assert_outcomes(errors=1, deselected=1)
    message = "not a whole JSON file" if broken else f"it is the baseline of machine {foreign.machine_key}, not of "
    result.stdout.fnmatch_lines([f"*ERROR: *baseline.json: {message}*"])
    assert project.records() == []
    assert path.read_text() == text


@pytest.mark.end_to_end
def test_a_single_accepted_run_passes_nothing_and_its_commit_is_rebuilt(
    project: Project, repository: Repository, baseline: Baseline
) -> None:
    """Even where the run is a thousand times faster than it."""
    commit = repository.commit()
    [run] = baseline.runs
    known = run.model_copy(update={"environment": run.environment.model_copy(update={"commit": commit})})
    baselines.write(baseline.model_copy(update={"runs": (known,)}), project.path / "reports")
    result = project.scaling("--scaling-trainer", "scratch", *ONE_CELL)
    assert result.ret == 0
    result.assert_outcomes(skipped=1, deselected=1)
    assert project.outcomes() == {"scratch-tiny-strong-1": "INCONCLUSIVE"}
    [record] = project.records()
    assert [(base.side, base.commit) for base in record.bases] == [("base", commit)]
    [cell] = record.cells
    beside, stored, counted = cell.checks
    assert (beside.rule, beside.against, beside.counts) == ("time", "the accepted run accepted, rebuilt", True)
    assert beside.ratio is not None
    assert (counted.rule, counted.against, counted.outcome) == ("counters", beside.against, "PASS")
    assert (stored.rule, stored.outcome, stored.counts) == ("stored", "INCONCLUSIVE", False)
    assert "than the 1 accepted run(s)" in stored.reason
    assert "the comparison with its rebuilt commit decides" in stored.reason
    assert {window.arm for window in record.sessions[-1].windows} == {
        f"{side}:scratch:tiny:strong:1" for side in ("candidate", "base")
    }


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
