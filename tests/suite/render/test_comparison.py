"""Two runs side by side: which times are divided, what differs, and the three forms of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suite.__main__ import main
from suite.records.record import Record
from suite.render import comparison, html, markdown, terminal
from suite.render.comparison import around, compare
from suite.verdict.metrics import Interval
from tests.support import records
from tests.support.records import KEY, keep

CELL: dict[str, Any] = {"id": "ddp-lenet-strong-2", "world_size": 2, "sessions": 4}


def run_of(seconds: float = 13.0, *, day: int = 1, **changes: Any) -> Record:
    """A run of one cell; `changes` are as for `records.run_of`."""
    return records.run_of(day, seconds, **changes)


def pair(first: Record, second: Record) -> comparison.Pair:
    (found,) = compare(first, second).pairs
    return found


def test_trainers_with_the_same_class_name_have_names_of_their_own() -> None:
    a, b = (run_of(cells=[records.cell(trainer=f"{file}.py:Mine")]) for file in "ab")
    found = compare(a, b)
    assert (found.only_first, found.only_second) == (["a.Mine lenet strong 1"], ["b.Mine lenet strong 1"])


def test_times_of_one_machine_are_divided_and_not_judged() -> None:
    found = compare(run_of(10.0), run_of(11.0))
    assert found.pairs[0].ratio == Interval(pytest.approx(1.1))
    assert comparison.remarks(found) == [comparison.NO_VERDICT]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"machine": records.MACHINE | {"key": "cuda-8xother"}},
            f"different machines ({KEY}, cuda-8xother)",
        ),
        ({"workload_hashes": {"lenet": "0" * 12}}, "workload lenet is defined differently in the two runs"),
        ({"workload_hashes": {}}, "workload lenet is defined differently in the two runs"),
        ({"datasets": {"lenet": "fashion-mnist"}}, "workload lenet was timed on different data"),
        ({"cells": [records.cell(**CELL, oversubscribed=True)]}, "oversubscribed in one of the two runs alone"),
        ({"cells": [records.cell(**CELL, sec_per_epoch=None)]}, "not measured in both"),
        ({"cells": [records.cell(**CELL, sec_per_epoch=None)], "datasets": {}}, "not measured in both"),
    ],
)
def test_times_that_must_not_be_divided_are_shown_with_the_reason(changes: dict[str, Any], message: str) -> None:
    found = pair(run_of(), run_of(**changes))
    assert found.ratio is None
    assert message in found.note


def test_a_pair_is_marked_where_either_run_was_oversubscribed() -> None:
    own, shared = (run_of(cells=[records.cell(**CELL, oversubscribed=mark)]) for mark in (False, True))
    pairs = [pair(own, shared), pair(shared, own), pair(shared, shared), pair(own, own)]
    marked = "ddp lenet strong 2 (oversubscribed)"
    assert [each.name for each in pairs] == [marked] * 3 + ["ddp lenet strong 2"]
    assert [each.ratio is not None for each in pairs] == [False, False, True, True]


@pytest.mark.parametrize(
    "time",
    [
        {"estimate": 1e100, "low": 1e-308, "high": 1e100},
        {"estimate": 1.0, "low": 0.0, "high": 2.0},
        {"estimate": 1.0, "low": -1.0, "high": 1.0},
        {"estimate": 1e-308},
    ],
)
def test_senseless_times_break_nothing(time: dict[str, float]) -> None:
    senseless = run_of(cells=[records.cell(**CELL, sec_per_epoch=time)])
    for first, second in ((senseless, run_of()), (run_of(), senseless)):
        document = comparison.document(first, second)
        assert terminal.write(document, 160)
        assert html.write(document)


def test_differences_around_the_runs_are_listed() -> None:
    environment = {"versions": {"torch": "2.13.0", "nccl": "2.20"}, "commit": "def5678", "dirty": True}
    machine = records.make().machine.model_dump() | {"system": "Linux 7"}
    assert around(records.make(), records.make(environment=environment, machine=machine, tolerance=0.1)) == [
        ("machine system", "Linux 6", "Linux 7"),
        ("commit", "abc1234", "def5678 with uncommitted changes"),
        ("torch", "2.15.0", "2.13.0"),
        ("nccl", "-", "2.20"),
        ("tolerance", "0.05", "0.1"),
    ]
    assert around(records.make(), records.make()) == []
    hashes = {"lenet": records.LENET.hash, "more": "0" * 12}
    assert around(run_of(), run_of(workload_hashes=hashes)) == []
    (found,) = around(run_of(), run_of(workload_hashes=hashes | {"lenet": "1" * 12}))
    assert found.what == "definition of workload lenet"


def test_cells_of_one_run_alone_are_named() -> None:
    first = records.make(cells=records.matrix(modes=("strong",), world_sizes=(1, 2)))
    second = records.make(cells=records.matrix(modes=("strong",), world_sizes=(2, 4)))
    found = compare(first, second)
    assert [pair.name for pair in found.pairs] == ["ddp lenet strong 2"]
    text = terminal.write(comparison.document(first, second), 160)
    assert "Only in the first run: ddp lenet strong 1." in text
    assert "Only in the second run: ddp lenet strong 4." in text


def test_one_device_is_one_cell_in_both_modes() -> None:
    strong, weak = (
        records.make(cells=records.matrix(modes=(mode,), one_device_s=seconds))
        for mode, seconds in (("strong", 10.0), ("weak", 11.0))
    )
    found = compare(strong, weak)
    [one] = found.pairs
    assert (one.name, one.ratio) == ("ddp lenet strong 1", Interval(pytest.approx(1.1)))
    assert (found.only_first, found.only_second) == (["ddp lenet strong 2"], ["ddp lenet weak 2"])
    both = records.make(cells=records.matrix())
    assert [each.name for each in compare(both, both).pairs] == [
        "ddp lenet strong 1",
        "ddp lenet strong 2",
        "ddp lenet weak 2",
    ]


def test_two_runs_without_a_common_cell_say_so_and_what_to_do() -> None:
    strong, weak = (records.make(cells=records.matrix(modes=(mode,), world_sizes=(2,))) for mode in ("strong", "weak"))
    said = "No cell is in both runs; measure the same trainers, workloads, modes and world sizes in both."
    assert said in terminal.write(comparison.document(strong, weak), 160)
    assert said not in comparison.remarks(compare(strong, strong))


def test_all_three_forms_say_the_same() -> None:
    document = comparison.document(run_of(10.0), run_of(13.0, tolerance=0.1))
    for text in (terminal.write(document, 160), markdown.write(document), html.write(document)):
        for words in ("10 [", "13 [", "1.300", "tolerance", "Runs of different hours differ by more"):
            assert words in text.replace("\\", "")
        assert "\x1b[" not in text


def test_of_cells_that_differ_alike_the_first_is_taken_apart() -> None:
    *_, picture = comparison.document(records.full(), records.full()).first.pictures
    assert picture.title == "Where the time of ddp-lenet-strong-2 went"


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nscaling_report_dir = 'kept'\n")
    kept = (run_of(seconds, day=day, run_id=f"run-{day}") for day, seconds in ((1, 10.0), (2, 13.0)))
    return keep(tmp_path / "kept", *kept).parent


def test_runs_are_named_by_file_folder_or_id(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = reports / KEY / "runs" / "run-1"
    for first in (str(folder / "record.json"), str(folder), "run-1"):
        assert main(["compare", first, "run-2"]) == 0
        assert "1.300" in capsys.readouterr().out
    assert main(["compare", "--scaling-report-dir", "kept", "--markdown", "run-1", "run-2"]) == 0
    assert capsys.readouterr().out.startswith("# Two runs side by side\n")


def test_a_record_that_is_named_may_be_a_link_and_one_in_a_named_folder_may_not(
    reports: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = reports / KEY / "runs" / "run-1"
    kept = (folder / "record.json").rename(tmp_path / "elsewhere.json")
    (folder / "record.json").symlink_to(kept)
    assert main(["compare", str(folder / "record.json"), "run-2"]) == 0
    for name in (str(folder), "run-1"):
        assert main(["compare", name, "run-2"]) == 4
        assert f"'{name}': expected a record.json, a run's folder" in capsys.readouterr().err


def test_a_page_is_written_where_it_is_asked_for(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = reports / "new" / "compare.html"
    assert main(["compare", "run-1", "run-2", "--html", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert main(["compare", "run-1", "run-2", "--html", str(reports)]) == 1
    assert f"compare: {reports}: Is a directory; choose another --html" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run-1", "run-9"], "'run-9': expected a record.json, a run's folder, or the id of a run under "),
        (["run-1", "run-2", "run-3"], "unrecognized arguments: run-3"),
        (["run-1", "broken.json"], "broken.json: not a whole JSON file"),
        (["run-1", "twice"], f"run 'twice' was measured on {KEY}, other?[31m: name the folder of one"),
        (["run-1"], "the following arguments are required: SECOND"),
    ],
)
def test_usage_errors_have_exit_status_4(
    reports: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("broken.json").write_text("{")
    for key in (KEY, "other\x1b[31m"):
        folder = reports / key / "runs" / "twice"
        folder.mkdir(parents=True)
        (folder / "record.json").write_text("{")
    try:
        status = main(["compare", *arguments])
    except SystemExit as ended:
        status = ended.code
    assert status == 4
    assert message in capsys.readouterr().err
