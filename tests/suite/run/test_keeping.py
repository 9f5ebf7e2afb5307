"""What is kept of a run that is cancelled, or finds no space for its files; tests/end_to_end has whole runs."""

from __future__ import annotations

import errno
import fcntl
import tempfile
from pathlib import Path

import pytest

from suite.records import baselines
from suite.records.files import RecordError
from suite.run import execute, results
from suite.run.execute import Keeper, RunResult
from tests.support.measurements import MACHINE, add_sessions, arm, calibrated, cell, run_of, settings


def test_a_folder_that_turns_read_only_while_the_first_record_is_written_is_refused(tmp_path: Path) -> None:
    """The file that was begun cannot be removed, and with it the folder of the run."""

    def begin(folder: Path) -> None:
        (folder / ".record.json.abcd1234").touch()
        raise OSError(errno.EROFS, "Read-only file system")

    with pytest.raises(RecordError, match="Read-only file system; choose another --scaling-report-dir"):
        Keeper(tmp_path / "runs" / "one", begin, print)


def test_ctrl_c_while_the_first_record_is_written_leaves_no_folder(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Keeper(tmp_path / "runs" / "one", interrupted, print)
    assert not list((tmp_path / "runs").iterdir())


def test_a_run_removes_what_killed_runs_had_not_finished_writing(tmp_path: Path) -> None:
    """A file that another process still writes stays, and so does one of the user's."""
    killed, living = tmp_path / "runs" / "killed", tmp_path / "runs" / "living"
    for folder in (killed, living):
        folder.mkdir(parents=True)
        (folder / ".record.json.abcd1234").touch()
    (living / ".notes").touch()
    with (living / ".record.json.abcd1234").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        Keeper(tmp_path / "runs" / "own", lambda folder: (folder / "record.json").touch(), print)
    kept = {str(path.relative_to(tmp_path / "runs")) for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {"own/record.json", "living/.record.json.abcd1234", "living/.notes"}
    assert not killed.exists()


def test_where_no_folder_can_be_written_the_run_says_that_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    keeper = Keeper(tmp_path / "runs" / "one", lambda folder: None, said.append)
    keeper.keep(full)
    assert said == [keeper.problem]
    assert f"neither can {tmp_path} (No space left on device): nothing more is kept; free space" in keeper.problem


def test_a_baseline_is_not_written_through_a_link(tmp_path: Path) -> None:
    """The machine's folder has become a link while the run measured."""
    run = run_of(cell(1), config=settings(report_dir=tmp_path / "reports", accept="yes"))
    add_sessions(run, {arm(1): 0.01})
    result = RunResult(results.to_record(run), tmp_path, run)
    for name in ("reports", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "reports" / MACHINE.key).symlink_to(tmp_path / "elsewhere")
    execute.accept(run.plan.config, result, [], complete=True)
    assert "a link leads out of the report folder" in result.accepted
    with pytest.raises(RecordError, match="a link leads out of the report folder"):
        calibrated(0.01, cell(1)).write(tmp_path / "reports")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_baseline_that_cannot_be_written_is_said_and_is_no_success(tmp_path: Path) -> None:
    """The machine's folder has become a file while the run measured."""
    run = run_of(cell(1), config=settings(report_dir=tmp_path, accept="yes"))
    add_sessions(run, {arm(1): 0.01})
    result = RunResult(results.to_record(run), tmp_path, run)
    (tmp_path / MACHINE.key).touch()
    execute.accept(run.plan.config, result, [], complete=True)
    assert result.accepted == f"not accepted: {tmp_path / MACHINE.key}: File exists; run again when it can be written"
    assert result.problem == result.accepted


def test_a_run_that_was_to_be_accepted_and_is_not_has_a_problem(tmp_path: Path) -> None:
    """Pytest then ends with a status that is not 0."""
    run = run_of(config=settings(report_dir=tmp_path, accept="yes"))
    result = RunResult(results.to_record(run), tmp_path, run)
    execute.accept(run.plan.config, result, [], complete=True)
    assert result.problem == result.accepted == f"not accepted: {baselines.NOTHING_SELECTED}"
