"""The items of a training script: which there are, what a wrong option says, and the command that shows one again."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite import options
from suite.checks.script import again, explain, world_size
from suite.plan import scripts
from suite.plan.workloads import available as workloads_of
from suite.processes.jobs import ScriptRun
from suite.script.items import ITEMS, Verdict
from suite.script.main import run_as_main
from tests.support.project import Project

SCRIPT = "--scaling-script=train.py --batch_size {batch}"


@pytest.fixture(autouse=True)
def train(project: Project) -> None:
    (project.path / "train.py").write_text("raise SystemExit\n")


def collected(project: Project, *arguments: str) -> list[str]:
    result = project.inline("-m", "correctness", "--collect-only", "-q", *arguments, package="suite.checks")
    return [line.rpartition("::")[2] for line in result.outlines if "::" in line]


def test_a_script_has_its_items_and_no_trainer_is_checked_beside_it(project: Project) -> None:
    items = collected(project, SCRIPT, "--scaling-batch=8")
    assert items == [f"test_script[train-{item}]" for item in ITEMS]


def test_a_trainer_that_is_named_is_checked_too(project: Project) -> None:
    items = collected(project, SCRIPT, "--scaling-batch=8", "--scaling-trainer=single")
    assert {item.partition("[")[0] for item in items} == {"test_script", "test_correctness"}


def test_without_a_script_there_is_no_item(project: Project) -> None:
    assert not any("test_script" in item for item in collected(project))


def test_the_header_names_the_scripts(project: Project) -> None:
    result = project.inline("-m", "correctness", "--collect-only", SCRIPT, "--scaling-batch=8", package="suite.checks")
    result.stdout.fnmatch_lines(["correctness: scripts train"])
    assert not any(line.startswith("correctness: trainers") for line in result.outlines)


def test_a_command_that_cannot_run_is_a_usage_error(project: Project) -> None:
    with pytest.raises(pytest.UsageError, match=r"^--scaling-script: command 'python train.py' begins with python"):
        options.read(project.config("--scaling-script=python train.py"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "scripts",
            r"^script '\.\./up' in .*: expected a letter or digit, and after it letters, digits, or any of \. _",
        ),
        (
            "workloads",
            r"^workload '\.\./up' in .*: expected a letter or digit, and after it letters, digits, spaces, or",
        ),
    ],
)
def test_a_name_that_is_a_path_is_refused(table: str, message: str, tmp_path: Path) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(f'[tool.scaling.{table}."../up"]\ncommand = "train.py"\n')
    with pytest.raises(ValueError, match=message):
        (scripts.available if table == "scripts" else workloads_of)(pyproject)


def test_a_script_that_is_not_there_any_more_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no script .*/gone\.py; check the path, or compare"):
        run_as_main(ScriptRun(words=("gone.py",), directory=str(tmp_path), environment={}))


def test_a_failure_ends_with_the_command_of_its_item_alone(project: Project) -> None:
    config = project.config("-m", "correctness", SCRIPT, "--scaling-batch=8", "-k", "replicas or data")
    settings = options.read(config)
    [script] = settings.scripts
    shown = "-k 'train-data]'"
    assert again(settings, script, "data").endswith(shown)
    assert "replicas" not in again(settings, script, "data")
    said = explain(settings, script, "data", Verdict("rows are shared; split them", ("no sampler",)))
    assert said.splitlines()[:2] == ["script 'train', data: rows are shared; split them", "  looks like: no sampler"]
    assert said.endswith(shown)


@pytest.mark.parametrize(("sizes", "k"), [("1", 2), ("1,2", 2), ("1,2,3,4", 3)])
def test_a_script_is_recorded_on_two_or_three_ranks(sizes: str, k: int, project: Project) -> None:
    arguments = [SCRIPT, "--scaling-batch=8", "--scaling-devices=cpu:4", f"--scaling-world-sizes={sizes}"]
    assert world_size(options.read(project.config(*arguments))) == k


def test_a_module_that_is_skipped_ends_no_run(project: Project) -> None:
    (project.path / "test_skipped.py").write_text("import pytest\npytest.skip('here', allow_module_level=True)\n")
    result = project.inline(package="test_skipped.py")
    result.assert_outcomes(skipped=1)
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
