"""Pages are written again next to their records, by file, by folder or all; what cannot be read is left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite import __main__
from suite.cli import render as render_command
from suite.records import baselines
from suite.records.baselines import Baseline
from suite.records.record import Record
from suite.render import pages
from tests.support import records

KEY = "cpu-2xtest-00000000"
PAGES = {"report.html", "summary.md"}


def run_of(day: int, **changes: Any) -> Record:
    return records.make(run_id=f"202601{day:02}T000000Z-abc1234", **changes)


def put(folder: Path, record: Record) -> Path:
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(record.model_dump_json())
    return folder


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the report folder of a project with two runs, in which the command is known."""
    monkeypatch.setitem(__main__.COMMANDS, "render", render_command)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nscaling_report_dir = 'kept'\n")
    for day in (1, 2):
        put(tmp_path / "kept" / KEY / "runs" / run_of(day).run_id, run_of(day))
    return tmp_path / "kept"


def written(folder: Path) -> dict[str, set[str]]:
    """Return the pages that are in each folder."""
    found: dict[str, set[str]] = {}
    for path in [path for name in (*PAGES, "index.html") for path in folder.rglob(name)]:
        found.setdefault(path.parent.name, set()).add(path.name)
    return found


@pytest.mark.parametrize(
    ("name", "days"),
    [
        (lambda reports: [], (1, 2)),
        (lambda reports: [reports / KEY], (1, 2)),
        (lambda reports: [reports / KEY / "runs" / run_of(1).run_id], (1,)),
        (lambda reports: [reports / KEY / "runs" / run_of(1).run_id / "record.json"], (1,)),
    ],
    ids=["report folder", "machine", "run", "record"],
)
def test_records_are_named_by_file_or_folder(
    reports: Path, capsys: pytest.CaptureFixture[str], name: Callable[[Path], list[Path]], days: tuple[int, ...]
) -> None:
    assert __main__.main(["render", *map(str, name(reports))]) == 0
    assert f"render: {len(days)} run(s) written, 0 could not be read" in capsys.readouterr().out
    assert written(reports) == {**{run_of(day).run_id: PAGES for day in days}, KEY: {"index.html"}}
    assert f"runs/{run_of(1).run_id}/report.html" in (reports / KEY / "index.html").read_text()


def test_a_record_outside_of_a_report_folder_has_no_history(reports: Path, tmp_path: Path) -> None:
    folder = put(tmp_path / "taken-home", run_of(1))
    assert __main__.main(["render", "taken-home"]) == 0
    assert written(tmp_path) == {folder.name: PAGES}


def test_what_cannot_be_read_is_named_and_the_rest_is_written(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = reports / KEY / "runs" / "broken"
    broken.mkdir()
    for path in (broken / "record.json", reports / KEY / "baseline.json"):
        path.write_text("{")
    assert __main__.main(["render"]) == 0
    captured = capsys.readouterr()
    assert "render: left out: " in captured.err
    assert "render: without what was accepted: " in captured.err
    assert "2 run(s) written, 1 could not be read" in captured.out
    assert "broken" in (reports / KEY / "index.html").read_text()
    assert __main__.main(["render", str(broken)]) == 4, "it was asked for by name"


def test_a_page_that_cannot_be_written_ends_with_one(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (reports / KEY / "runs" / run_of(1).run_id / "report.html").mkdir()
    assert __main__.main(["render"]) == 1
    assert "cannot be written: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nowhere"], ["--scaling-report-dir", "nowhere"]])
def test_an_unknown_place_is_a_usage_error(
    reports: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert __main__.main(["render", *arguments]) == 4
    message = "nowhere: expected a record.json, or the folder of a run, of a machine, or of reports"
    assert message in capsys.readouterr().err


def test_a_wrong_option_or_setting_is_a_usage_error(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="4"):
        __main__.main(["render", "--scaling-budget=60"])
    assert "unrecognized arguments: --scaling-budget=60" in capsys.readouterr().err
    Path("pyproject.toml").write_text("[tool.pytest.ini_options]\nscaling_tolerance = 'none'\n")
    with pytest.raises(SystemExit, match="4"):
        __main__.main(["render"])


def test_a_page_shows_only_what_was_accepted_before_its_run(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = Baseline(machine_key=KEY)
    for day in (1, 2, 3):
        baseline = baselines.accept(baseline, run_of(day), slower=False)
    seen: list[Baseline] = []
    monkeypatch.setattr(pages.html, "render", lambda record, known: seen.append(known) or "")
    pages.write_run(reports, run_of(2), baseline)
    assert [run.run_id for run in seen[0].runs] == [run_of(1).run_id]


def test_two_hundred_records_would_be_written_in_under_ten_seconds(tmp_path: Path) -> None:
    """A quarter of them in a quarter of the time; seconds of this process, because others may use the machine."""
    cells = records.matrix(trainers=("ddp", "scratch", "fsdp"), world_sizes=(1, 2), waterfalls=[records.waterfall()])
    sessions = [records.session(number, blocks=20) for number in range(6)]
    for number in range(50):
        record = records.make(run_id=f"2026{number:04}", cells=cells, sessions=sessions)
        put(tmp_path / KEY / "runs" / record.run_id, record)
    before = time.process_time()
    assert render_command._write(sorted(tmp_path.rglob("record.json"))) == (50, 0)
    assert time.process_time() - before < 2.5
