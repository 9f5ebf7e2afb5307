"""The drill: what counts as red for the right reason, and how a drill ends."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from suite.__main__ import main
from suite.cli import drill
from suite.cli.command import Stop
from suite.cli.drill import Checked
from suite.records import calibration
from suite.records.record import Record
from tests.support import records
from tests.support.measurements import calibrated, cell
from tests.support.project import Project

RIGHT, FOUND, RAISED = Checked("passed"), Checked("wrong", "it is off by 1"), Checked("raised", "it raised")


def run_with(outcome: str, rule: str = "time", **changes: Any) -> Record:
    """A record of one cell, with one rule's finding."""
    check = {"rule": rule, "against": "ddp", "outcome": outcome, "reason": "why"}
    return records.make(cells=[records.cell(outcome=outcome, reason="why", checks=[check]) | changes])


@pytest.mark.parametrize(
    ("status", "record", "complaint"),
    [
        (0, run_with("PASS"), "ddp-lenet-strong-1 is not red but PASS: why"),
        (
            0,
            run_with("INCONCLUSIVE"),
            "ddp-lenet-strong-1 is INCONCLUSIVE, so none of this size is found here: why",
        ),
        (1, run_with("ERROR"), "ddp-lenet-strong-1 is not red but ERROR: why"),
        (1, run_with("FAIL", rule="floor"), "ddp-lenet-strong-1 is red for another reason: why"),
        (0, run_with("FAIL"), "every cell is FAIL, and pytest's exit status 0 instead of 1"),
        (5, None, r"nothing was measured \(pytest's exit status 5\)"),
        (1, records.make(cells=[]), r"nothing was measured \(pytest's exit status 1\)"),
    ],
)
def test_a_slowdown_must_turn_every_cell_red_by_its_time(status: int, record: Record | None, complaint: str) -> None:
    assert drill.judge_slow(1, [run_with("FAIL")]) == []
    [found] = drill.judge_slow(status, [record] if record else [])
    assert re.search(f"^the planted slowdown: {complaint}$", found)


def test_the_one_green_cell_of_several_is_named() -> None:
    cells = [*run_with("FAIL").cells, *run_with("PASS", id="other").cells]
    [found] = drill.judge_slow(1, [records.make(cells=[cell.model_dump() for cell in cells])])
    assert "other is not red but PASS" in found


@pytest.mark.parametrize("alone", [RIGHT, Checked("skipped", "one GPU")])
def test_a_wrong_gradient_that_its_check_finds_is_no_complaint(alone: Checked) -> None:
    assert drill.judge_wrong(1, {"gradient": FOUND, "identity": alone}) == []


@pytest.mark.parametrize(
    ("status", "checks", "complaint"),
    [
        (0, {"gradient": RIGHT, "identity": RIGHT}, "check 'gradient' stayed green"),
        (
            1,
            {"gradient": FOUND, "identity": FOUND},
            "check 'identity' failed too, where nothing was planted: it is off",
        ),
        (0, {"gradient": Checked("skipped", "one GPU"), "identity": RIGHT}, "check 'gradient' was skipped: one GPU"),
        (1, {"gradient": RAISED, "identity": RIGHT}, "check 'gradient' is red for another reason: it raised"),
        (
            1,
            {"gradient": Checked("failed", "loading it"), "identity": RIGHT},
            "check 'gradient' is red for another reason: loading it",
        ),
        (0, {"gradient": FOUND, "identity": RIGHT}, "check 'gradient' failed, and pytest's exit status is 0 instead"),
        (3, {}, r"the checks did not run \(pytest's exit status 3\)"),
    ],
)
def test_a_wrong_gradient_must_turn_its_check_red(status: int, checks: dict[str, Checked], complaint: str) -> None:
    [found] = drill.judge_wrong(status, checks)
    assert re.search(f"^the planted wrong gradient: {complaint}", found)


def test_checks_are_read_from_junit(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    properties = (
        '<properties><property name="examples" value="3"/><property name="failure" value="wrong"/></properties>'
    )
    junit.write_text(
        "<testsuites><testsuite>"
        '<testcase name="test_correctness[Wrong-start]"/>'
        f'<testcase name="test_correctness[Wrong-gradient]">{properties}<failure message="it&#10;more"/></testcase>'
        '<testcase name="test_correctness[Wrong-batch_norm]"><error message="set-up">all</error></testcase>'
        '<testcase name="test_correctness[Wrong-loss]"><skipped message="one GPU">all</skipped></testcase>'
        "</testsuite></testsuites>"
    )
    assert drill.checked(junit) == {
        "start": RIGHT,
        "gradient": Checked("wrong", "it"),
        "batch_norm": Checked("failed", "set-up"),
        "loss": Checked("skipped", "one GPU"),
    }


def test_a_trainers_file_is_named_so_that_another_folder_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    named = [drill.absolute(spec) for spec in ("train.py:Mine", "ddp", "package.train:Mine")]
    assert named == [f"{tmp_path}/train.py:Mine", "ddp", "package.train:Mine"]


def test_the_machines_calibration_is_lent_to_the_drills_run(tmp_path: Path) -> None:
    known = calibrated(0.01, cell(1))
    known.write(tmp_path / "reports")
    drill.copy_calibration(tmp_path / "reports", tmp_path / "drill")
    assert calibration.read(tmp_path / "drill", known.machine_key) == known


def test_a_calibration_that_is_a_link_or_a_pipe_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pull request can bring a link, as to a device that never ends."""
    (tmp_path / "elsewhere.json").touch()
    for name in ("linked", "pipe"):
        (tmp_path / "reports" / name).mkdir(parents=True)
    calibration.path_for(tmp_path / "reports", "linked").symlink_to(tmp_path / "elsewhere.json")
    os.mkfifo(calibration.path_for(tmp_path / "reports", "pipe"))
    drill.copy_calibration(tmp_path / "reports", tmp_path / "drill")
    assert not (tmp_path / "drill").exists()
    said = sorted(capsys.readouterr().err.splitlines())
    assert re.match("drill: without a calibration: .*linked.*: a link leads out of the report folder; put", said[0])
    assert re.match("drill: without a calibration: .*pipe.*: not a regular file; put", said[1])


def test_a_calibration_for_which_there_is_no_space_ends_the_drill(tmp_path: Path) -> None:
    calibrated(0.01, cell(1)).write(tmp_path / "reports")
    (tmp_path / "drill").touch()
    with pytest.raises(Stop, match=r"drill: (Not a directory|File exists); choose another TMPDIR"):
        drill.copy_calibration(tmp_path / "reports", tmp_path / "drill")


@pytest.mark.parametrize("share", ["0", "-1", "nan", "inf", "much"])
def test_a_slowdown_that_is_not_above_zero_is_a_usage_error(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="4"):
        main(["drill", "--slowdown", share])
    assert f"{share!r}: expected a number above 0" in capsys.readouterr().err


@pytest.mark.usefixtures("project")
def test_a_wrong_option_is_pytests_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="4"):
        main(["drill", "--scaling-trainer", "unknown"])
    assert "--scaling-trainer 'unknown': valid values are" in capfd.readouterr().err


@pytest.mark.usefixtures("two_cores")
def test_settings_without_a_world_size_are_refused(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """An ini file that serves larger machines may name none that fits this one."""
    project.ini(scaling_world_sizes="64")
    assert main(["drill", "--scaling-devices", "cpu:2"]) == 1
    said = "drill: no world size of the settings fits cpu:2; choose others with --scaling-world-sizes"
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("project")
def test_gpus_that_are_not_there_are_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["drill", "--scaling-devices=cuda"]) == 1
    said = "drill: cuda:0: no device found; check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES, or use"
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("project")
def test_several_hosts_are_refused_which_do_not_have_what_is_planted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "127.0.0.1:29400")
    monkeypatch.setenv("SCALING_SECRET", "a secret of sixteen characters or more")
    assert main(["drill", "--scaling-devices=2xcpu:1"]) == 4
    assert "drill: devices 2xcpu:1: this command works on one host; leave out '2x'" in capsys.readouterr().err
