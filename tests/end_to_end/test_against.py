"""Whole runs beside a base and against a stored baseline, and what is accepted at the end of a session.

A second of budget leaves one session for each part of a run; what more of them decide is shown by test_commands.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

import numpy
import pytest
import torch

from suite.records import baselines
from tests.suite.plugin.test_accepting import LENET, MEASURED, accepted, an_hour_an_epoch, floor, mine
from tests.support import trainers_under_test
from tests.support.deadlines import WHOLE_S
from tests.support.project import ONE_CELL, TINY, Project, needs_two_cores
from tests.support.repositories import Repository

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


def test_a_commit_is_measured_beside_an_older_one_and_missing_trainers_are_errors(
    project: Project,
) -> None:
    """One run: a trainer that became slower, and three that the older commit does not have, for different reasons."""
    repository = Repository(project.path)
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


def another_interpreter(folder: Path) -> Path:
    """Return an interpreter that has torch and numpy, and no other package that the suite needs to judge."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(('pydantic', 'psutil', 'rich', 'scipy', 'jinja2')))"
    return an_environment(folder, blocked)


def an_environment(folder: Path, *lines: str) -> Path:
    """Return the interpreter of an environment that shares the packages of this one, and has lines in a .pth file."""
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    installed = sorted({str(Path(module.__path__[0]).parent) for module in (torch, numpy)})
    (site / "installed.pth").write_text("\n".join([*installed, *lines, ""]))
    return folder / "bin" / "python"


def test_another_interpreter_with_torch_alone_is_measured_in_the_same_sessions(project: Project) -> None:
    python = another_interpreter(project.path / "another")
    result = project.scaling("--scaling-trainer", "scratch", f"--scaling-against={python}", *ONE_CELL)
    assert result.ret == 0
    assert project.outcomes() == {"scratch-tiny-strong-1": "INCONCLUSIVE"}
    [record] = project.records()
    assert [(base.side, base.kind) for base in record.bases] == [("base", "python")]
    assert {window.arm for window in record.sessions[0].windows} == {
        f"{side}:scratch:tiny:strong:1" for side in ("candidate", "base")
    }


def test_a_single_accepted_run_passes_nothing_and_its_commit_is_rebuilt(
    project: Project,
) -> None:
    """Even where the run is a thousand times faster than it."""
    baseline, commit = an_hour_an_epoch(project), Repository(project.path).commit()
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
    assert stored.reason.endswith(": stored times decide nothing")
    assert {window.arm for window in record.sessions[0].windows} > {
        f"{side}:scratch:tiny:strong:1" for side in ("candidate", "base")
    }


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("pip", "setuptools"))), reason="pip and setuptools install the project"
)
def test_a_commit_of_a_project_that_is_installed_with_pip_install_e_is_measured(
    project: Project, pytester: pytest.Pytester
) -> None:
    """Two packages in src, where links are; other layouts and installers: `tests.stranger`, `test_purity`."""
    folder, mode = "src", "strict"
    packages = {f"{folder}/{name}/__init__.py": "" for name in ("mine", "other")}
    with (project.path / "pyproject.toml").open("a") as file:
        file.write(
            '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
            '[project]\nname = "mine"\nversion = "1"\n'
            f'[tool.setuptools]\npackages = ["mine", "other"]\npackage-dir = {{"" = "{folder}"}}\n'
        )
    ignored = {".gitignore": "build/\n*.egg-info/\n__pycache__/\n"}
    trainers = f"{folder}/mine/trainers.py"
    repository = Repository(project.path)
    repository.commit({**packages, **ignored, trainers: trainer("Slow")})
    repository.commit({trainers: trainer("Slow", 0.6)})
    python = an_environment(project.path.parent / f"{project.path.name}-venv")
    settings = ("--quiet", "--no-deps", "--no-build-isolation", "--config-settings", f"editable_mode={mode}")
    install = [sys.executable, "-m", "pip", "--python", python, "install", *settings, "--editable", project.path]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=120)
    assert installed.returncode == 0, installed.stderr
    chosen = ("--scaling-trainer", "mine.trainers:Slow", "--scaling-against=ref:HEAD~1")
    command = ("-m", "pytest", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling", *TINY, *chosen)
    result = pytester.run(python, *command, *ONE_CELL, timeout=WHOLE_S)
    assert result.ret == 0
    [record] = project.records()
    [cell] = record.cells
    assert cell.outcome.value == "INCONCLUSIVE", "one session decides nothing"
    assert cell.slowdown is not None
    assert cell.slowdown.estimate > 1.05, "each side ran its own commit's code"
    assert not record.environment.dirty


STOPPED = (
    "not accepted: pytest was stopped before every selected test had run; run all of them, without -x and --maxfail"
)


def test_gradients_that_fail_after_the_measurement_keep_it_from_the_baseline(project: Project) -> None:
    """Real ranks train with a real trainer that exchanges nothing; `-m gpu` selects both kinds of item, too."""
    trainer = f"{trainers_under_test.__file__}:NoExchange"
    chosen = ("-m", "scaling or correctness", "-k", "lenet-strong or NoExchange-gradient")
    result = project.pytest(*MEASURED, *chosen, f"--scaling-trainer={trainer}", "suite.checks", "--scaling-accept")
    result.assert_outcomes(passed=2, failed=1, warnings=2, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["not accepted: *test_correctness[[]*NoExchange-gradient[]] failed in this *"])
    assert result.ret == 1
    assert accepted(project) == 0
    assert [record.checks_to_come for record in project.records()] == [1]
    result.stdout.fnmatch_lines(["Right?     This run goes on with 1 check of correctness; *"])


@pytest.mark.nightly
@needs_two_cores  # a floor holds for ranks that have a core each
@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        (("-x", "--scaling-accept=slower"), ()),
        (("--scaling-accept=slower",), ("raise KeyboardInterrupt", "pass")),
        (("--scaling-accept=slower",), ("pytest.exit(returncode=0)", "pass")),
    ],
    ids=["-x", "Ctrl-C", "pytest.exit"],
)
def test_a_session_that_was_stopped_is_not_accepted(
    project: Project, options: tuple[str, ...], bodies: tuple[str, ...]
) -> None:
    floor(project, 0.99)
    result = project.pytest(*LENET, *mine(project, *bodies), *options)
    result.stdout.fnmatch_lines([STOPPED])
    assert accepted(project) == 0
