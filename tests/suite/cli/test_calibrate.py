"""The command `calibrate`: what it asks of a run, what it says and stores, and the command line around it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from suite import __main__ as commands
from suite.cli import calibrate
from suite.records import calibration
from suite.records.calibration import Forecast, Spread
from suite.room.quiet import available_cores
from tests.suite.records.test_calibration import make
from tests.support.project import Project

needs_two_cores = pytest.mark.skipif(len(available_cores()) < 2, reason="two CPU workers need two cores")


def suite(project: Project, *arguments: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    """`python -m suite` in the project."""
    command = [sys.executable, "-m", "suite", *arguments]
    return subprocess.run(command, cwd=project.path, capture_output=True, text=True, timeout=timeout)


def test_a_calibration_compares_the_build_with_itself_and_accepts_nothing(project: Project) -> None:
    from suite import options

    arguments = ["--scaling-against", "ddp", "--scaling-inconclusive", "fail"]
    settings = options.read(project.config(*arguments))
    changed = calibrate.itself(settings, 12)
    assert changed.against is not None
    assert (changed.against.kind, changed.against.trainer, changed.calibrate) == ("self", None, 12)
    assert (changed.accept, changed.inconclusive) == (None, "warn")
    assert changed.budget_s == settings.budget_s, "sessions as long as those of later runs"


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (
            "within",
            r"4\.0% is found with 95% probability; what limits it is the noise within a session \(7\.0% a round",
        ),
        ("between", r"what limits it is the spread between sessions \(0\.0%\): more sessions"),
        ("starts", r"what limits it is starting the processes \(8\.0 of 12\.0 s a session\): a larger budget"),
        ("budget", r"60 s hold 5 session\(s\) of 12\.0 s, too few .*: raise --scaling-budget to 36 s or more"),
    ],
)
def test_one_plain_sentence_a_cell(limit: calibration.Limit, says: str) -> None:
    assert re.search(says, calibrate.sentence(make(), Forecast(5, 0.04, 0.06, limit), 60.0))


def test_a_machine_that_finds_nothing_is_told_so() -> None:
    hopeless: Spread = make(locations=[5.0 * (-1) ** n for n in range(12)])
    assert "a slowdown of nothing" not in calibrate.sentence(hopeless, Forecast(5, 12.0, 20.0, "within"), 60.0)
    assert "no slowdown below tenfold" in calibrate.sentence(hopeless, Forecast(5, 12.0, 20.0, "within"), 60.0)


@pytest.mark.end_to_end
@needs_two_cores
def test_a_machine_is_calibrated(project: Project) -> None:
    """From a project that only has the suite installed. A small budget makes short sessions, of one block each."""
    options = ["--scaling-devices", "cpu:2", "--scaling-workload", "tiny", "--scaling-trainer", "scratch"]
    short = ["--scaling-report-dir", "kept", "--scaling-budget", "1"]
    done = suite(project, "calibrate", "--sessions", "3", *options, *short, "-k", "strong-1")
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: equal code looked slower; one run in a hundred
    [path] = (project.path / "kept").glob("*/calibration.json")
    found = calibration.read(project.path / "kept", path.parent.name)
    assert found is not None
    [entry] = found.entries
    assert (entry.trainer, entry.workload, entry.world_size) == ("scratch", "tiny", 1)
    assert entry.spread.sessions == 3
    assert all(error > 0 for error in entry.spread.errors)
    assert 0 < entry.spread.start_s < entry.spread.session_s
    assert "compared with the same build" in done.stdout
    assert re.search(r"^ ?scratch tiny strong 1 +\d+\.\d\d% \(\d+\.\d\d%\)", done.stdout, re.MULTILINE)
    assert re.search(r"^scratch tiny strong 1: 1 s hold 0 session\(s\) of \d+\.\d s, ", done.stdout, re.MULTILINE)
    assert f"stored: {path}" in done.stdout
    assert "fewer than 10 sessions: no run will lean on it" in done.stdout
    assert "accepted" not in done.stdout


@pytest.mark.parametrize("sessions", ["2", "-3", "many"])
def test_too_few_sessions_are_a_usage_error(sessions: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="4"):
        commands.main(["calibrate", f"--sessions={sessions}"])
    assert f"{sessions!r}: expected a whole number of sessions, 3 or more" in capsys.readouterr().err


@pytest.mark.usefixtures("project")
def test_an_option_of_pytests_is_judged_by_pytest(capfd: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["calibrate", "--scaling-mode", "sideways"]) == pytest.ExitCode.USAGE_ERROR
    assert "--scaling-mode 'sideways': valid values are strong, weak" in capfd.readouterr().err


def test_no_cell_selected_is_pytests_status(project: Project) -> None:
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


def test_an_option_of_pytests_is_no_short_form_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--scaling-m` and `--sess` are pytest's to refuse; order and values go through as they are."""
    seen: list[list[str]] = []

    def remember(asked: object, pytest_arguments: list[str]) -> int:
        seen.append(pytest_arguments)
        return 0

    monkeypatch.setattr(calibrate, "run", remember)
    given = ["--scaling-trainer", "train.py:Mine", "-k", "strong and not weak", "--sess", "3", "-x", "--scaling-accept"]
    assert commands.main(["calibrate", *given]) == 0
    assert seen == [given]


def test_an_interrupt_has_a_shells_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "run", interrupted)
    assert commands.main(["calibrate"]) == 130


def test_the_command_line_loads_no_torch(tmp_path: Path) -> None:
    script = "import sys, suite.__main__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
