"""Checks from the outside, with ranks of their own: status, JUnit, profiles, workloads and models of a user, stress."""

from __future__ import annotations

import subprocess
import sys
from html import escape

import pytest

from suite.checks import __main__ as again
from suite.checks.bench import Bench
from suite.checks.draw import CHECKS
from suite.properties.answers import UNSEEN
from tests.support import on_ranks, own_signatures, texts, trainers_under_test
from tests.support.deadlines import WHOLE_S
from tests.support.freezing import ONE_PROCESS
from tests.support.project import REPOSITORY, Project

HERE, TEXTS = f"{trainers_under_test.__file__}:", f"{texts.__file__}:"


def test_a_case_that_is_right_is_reported_as_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert again.main(["scratch", "gradient", '{"world_size": 3, "batches": [5]}']) == 0
    assert capsys.readouterr().out == "right\n"
    assert again.main([HERE + "Adam", "gradient", '{"world_size": 2, "batches": [3]}']) == 0
    assert capsys.readouterr().out == f"right; {UNSEEN}\n"


def test_a_wrong_trainer_is_a_failure_in_exit_status_and_junit(project: Project) -> None:
    arguments = ["--scaling-trainer", "data_parallel", "--scaling-trainer", HERE + "LeavesNaN"]
    result = project.correctness(*arguments, "-k", "inputs or batch_norm", "--junitxml", "junit.xml")
    assert result.ret == 1
    result.assert_outcomes(passed=2, failed=2, deselected=2 * (len(CHECKS) - 2))
    result.stdout.fnmatch_lines_random(
        [
            "data_parallel, batch_norm: batch normalisation by shard",
            "*check 'inputs': step 0: the loss or the parameters*",
        ]
    )
    assert "see it again: python -m suite.checks" in (project.path / "junit.xml").read_text()


@pytest.mark.parametrize(("name", "failed"), [("Adam", 0), ("AdamWithoutExchange", 2)])
def test_what_a_trainer_that_is_compared_with_itself_hides_is_said_once_and_in_junit_of_every_check(
    project: Project, name: str, failed: int
) -> None:
    arguments = ["--scaling-trainer", HERE + name, "-k", "gradient or replicas", "--junitxml", "junit.xml"]
    result = project.correctness(*arguments)
    result.assert_outcomes(passed=2 - failed, failed=failed, deselected=len(CHECKS) - 2)
    assert result.stdout.str().count(f"{HERE}{name}: {UNSEEN}") == 1
    assert (project.path / "junit.xml").read_text().count(f"{name}: {escape(UNSEEN, quote=True)}") == 2


def test_the_nightly_profile_is_known_in_any_project_and_has_ten_times_the_examples(project: Project) -> None:
    """Ten times a fifth of hypothesis's own hundred."""
    arguments = ["--scaling-trainer", "single", "-k", "start", "--hypothesis-profile", "nightly"]
    project.correctness(*arguments, "--junitxml", "junit.xml").assert_outcomes(passed=1, deselected=len(CHECKS) - 1)
    assert 'name="examples" value="200"' in (project.path / "junit.xml").read_text()


def test_a_model_of_its_own_signature_is_one_failure_and_its_other_checks_are_skipped(project: Project) -> None:
    trainer = f"{own_signatures.__file__}:Calls"
    result = project.correctness("--scaling-trainer", trainer, "-rs")
    # That of the start takes no step.
    result.assert_outcomes(passed=1, failed=1, skipped=len(CHECKS) - 2)
    result.stdout.re_match_lines_random(
        [
            r".*check 'gradient': rank \d: OwnSignature: `step` calls its model as model\(Tensor, Tensor\), .*model",
            r"SKIPPED .*not checked: .*:Calls calls its model with a signature of its own; the failure of its check "
            r"'gradient' says what to use",
        ]
    )
    assert "looks like" not in result.stdout.str()


def test_a_workload_that_is_named_is_checked_as_well(project: Project) -> None:
    (project.path / "pyproject.toml").write_text(
        '[tool.scaling.workloads.texts]\nmodel = "tests.support.texts:Writer"\ndataset = "tests.support.texts:corpus"\n'
        'lr = 0.05\n\n[tool.scaling.workloads.texts.correctness]\nmodel = "tests.support.texts:tiny"\n'
    )
    wanted = ["--scaling-workload", "texts", "-k", "own_model", "--scaling-trainer"]
    result = project.correctness(*wanted, TEXTS + "MeanOfRanks", "--scaling-trainer", TEXTS + "Accumulates")
    result.assert_outcomes(passed=1, failed=1, deselected=2 * len(CHECKS))
    result.stdout.re_match_lines(
        [
            r".*MeanOfRanks, workload 'texts', 2 devices: step 0: the gradient of 'embed.weight', in 'embed'.*",
            r" *see it again: pytest --pyargs suite.checks -m correctness --scaling-workload=texts .* -k own_model",
        ]
    )


OWN = f"{own_signatures.__file__}:"
OWN_WORKLOAD = """
[tool.scaling.workloads.{name}]
model = "tests.support.own_signatures:{model}"
dataset = "tests.support.learners:overlapping_blobs"
batch = 32
lr = 0.1

[tool.scaling.workloads.{name}.accuracy]
dataset = "tests.support.learners:overlapping_blobs"
init = "default"
epochs = 2
"""


@pytest.mark.nightly
def test_models_of_their_own_signature_are_timed(project: Project) -> None:
    scores, losses = "CallsAlone", "CallsAloneForALoss"
    workloads = (("scores", "NeedsLabels"), ("losses", "OnlyLoss"))
    (project.path / "pyproject.toml").write_text("".join(OWN_WORKLOAD.format(name=n, model=m) for n, m in workloads))
    chosen = [f"--scaling-trainer={OWN}{name}" for name in (scores, losses)]
    chosen += ["--scaling-workload=scores,losses", "-k", f"{scores}-scores or {losses}-losses"]
    arguments = ["--scaling-devices=cpu:1", "--scaling-world-sizes=1", "--scaling-mode=strong", "--scaling-budget=60"]
    result = project.pytest("-m", "scaling", *chosen, *arguments)
    assert result.ret == 0, result.stdout.str()
    [record] = project.records()
    first, second = sorted(record.cells, key=lambda cell: cell.workload == "losses")
    assert first.accuracy is not None
    assert not first.why("accuracy")
    note = "not measured: the model returns tensors of [()] for labels of (64,): "
    assert second.accuracy is None
    assert second.why("accuracy").startswith(note)
    assert f"no accuracy for {second.id}: {note}" in result.stdout.str()


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
