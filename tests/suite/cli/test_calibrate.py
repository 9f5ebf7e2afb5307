"""The command `calibrate`: what it asks of a run, what it says and stores, and the command line around it."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from suite import __main__ as commands
from suite import options
from suite.cli import calibrate, pytest_run
from suite.processes.folder import locked
from suite.records import calibration
from suite.run import results
from suite.run.execute import RunResult
from tests.suite.records.test_calibration import entry
from tests.support.measurements import MACHINE, add_sessions, arm, calibrated, cell, run_of, settings
from tests.support.project import Project


def test_a_calibration_compares_the_build_with_itself_and_accepts_nothing(project: Project) -> None:
    settings = options.read(project.config("--scaling-against", "ddp", "--scaling-inconclusive", "fail"))
    changed = calibrate.itself(settings, 12)
    assert changed.against is not None
    assert (changed.against.kind, changed.against.trainer, changed.calibrate) == ("self", None, 12)
    assert (changed.accept, changed.inconclusive) == (None, "warn")
    assert changed.budget == settings.budget, "sessions as long as those of later runs"


@pytest.mark.parametrize(
    ("session_s", "finds", "says"),
    [
        (12.0, r"\d+\.\d% slower", "A budget of 60 s has room for 5 session(s) of 12.0 s.\n"),
        (20.0, "nothing", "room for 3 session(s) of 20.0 s. A FAIL takes 4: raise --scaling-budget to 80 s.\n"),
    ],
)
def test_each_cell_has_its_spread_and_what_a_run_finds(session_s: float, finds: str, says: str) -> None:
    said = calibrate.table((entry(),), settings(budget_s=60.0), 1, session_s)
    assert re.search(rf"^ ?ddp lenet strong 2 +0\.00% +3\.00% +{finds} *$", said, re.MULTILINE)
    assert said.endswith(says)


@pytest.mark.parametrize("sessions", ["2", "-3", "many"])
def test_too_few_sessions_are_a_usage_error(sessions: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="4"):
        commands.main(["calibrate", f"--sessions={sessions}"])
    assert f"{sessions!r}: expected a whole number, 3 or more" in capsys.readouterr().err


def test_pytest_reads_its_options_and_selects_the_cells(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["calibrate", "--scaling-mode", "sideways"]) == pytest.ExitCode.USAGE_ERROR
    assert "--scaling-mode 'sideways': valid values are strong, weak" in capfd.readouterr().err
    assert commands.main(["calibrate", "-k", "nothing_of_that_name"]) == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not list(project.path.glob("reports/*"))


def test_every_command_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        commands.main(["--help"])
    said = capsys.readouterr().out
    for name, command in commands.COMMANDS.items():
        assert name in said
        assert command.SUMMARY.split(";")[0] in " ".join(said.split())


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="4"):
        commands.main(["calibarte"])
    assert "calibrate" in capsys.readouterr().err


def test_options_of_pytest_reach_it_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--sess` is no short form of our `--sessions`; order and values are kept."""
    seen: list[list[str]] = []
    monkeypatch.setattr(calibrate, "run", lambda asked, pytest_arguments: seen.append(pytest_arguments) or 0)
    given = ["--scaling-trainer", "train.py:Mine", "-k", "strong and not weak", "--sess", "3", "-x", "--scaling-accept"]
    assert commands.main(["calibrate", *given]) == 0
    assert seen == [given]


def test_an_interrupt_has_a_shells_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "run", interrupted)
    assert commands.main(["calibrate"]) == 130


def test_two_calibrations_at_once_are_both_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one holds the machine's folder while this one ends."""
    run = run_of(cell(1), config=settings(report_dir=tmp_path))
    add_sessions(run, {arm(1): 0.01, arm(1, side="base"): 0.01}, 3)
    result = RunResult(results.to_record(run), tmp_path, run)
    monkeypatch.setattr(calibrate.pytest_run, "run", lambda *_: pytest_run.Ended(run=result))
    ending = threading.Thread(target=commands.main, args=(["calibrate", "--sessions", "3"],))
    with locked(tmp_path / MACHINE.key):
        ending.start()
        ending.join(1.0)
        assert ending.is_alive()
        calibrated(0.01, cell(2)).write(tmp_path)
    ending.join(60)
    stored = calibration.read(tmp_path, MACHINE.key)
    assert stored is not None
    assert sorted(entry.world_size for entry in stored.entries) == [1, 2]
