"""Comparing two runs: which times are divided, intervals that cover, and the part of a step that grew."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite import __main__
from suite.cli import compare as command
from suite.records import baselines, comparison
from suite.records.baselines import Baseline
from suite.records.comparison import ACCEPTED, CALIBRATED, NONSENSE, OTHER_HOST, UNKNOWN, Known, compare
from suite.records.record import Record
from suite.render import comparison as render
from suite.render.markdown import MAX_CHARACTERS
from tests.support import measurements, records
from tests.support.records import KEY, keep

CELL: dict[str, Any] = {"id": "ddp-lenet-strong-2", "world_size": 2, "sessions": 4}
CALIBRATION = measurements.calibrated(0.02, measurements.cell(2))


def run_of(seconds: float = 13.0, *, day: int = 1, **changes: Any) -> Record:
    """A run of one cell; `changes` are as for `records.run_of`."""
    return records.run_of(day, seconds, **changes)


def accepted(*seconds: float) -> Baseline:
    return records.accepted(*(run_of(value, day=day) for day, value in enumerate(seconds, start=10)))


def pair(first: Record, second: Record, known: Known | None = None) -> comparison.Pair:
    (found,) = compare(first, second, known or Known()).pairs
    return found


def test_trainers_with_the_same_class_name_have_names_of_their_own() -> None:
    a, b = (run_of(cells=[records.cell(trainer=f"{file}.py:Mine")]) for file in "ab")
    found = compare(a, b, Known())
    assert (found.only_first, found.only_second) == (("a.Mine lenet strong 1",), ("b.Mine lenet strong 1",))


@pytest.mark.parametrize(
    ("first", "known", "note"),
    [
        ({}, Known(), UNKNOWN),
        ({}, Known(calibration=CALIBRATION.model_copy(update={"host": "other"})), UNKNOWN),
        ({"host": "other"}, Known(accepted(9.8, 10.0, 10.1, 10.3), CALIBRATION), OTHER_HOST),
    ],
)
def test_a_ratio_has_no_interval_where_it_is_not_known_how_runs_differ(
    first: dict[str, str], known: Known, note: str
) -> None:
    found = pair(run_of(10.0, **first), run_of(11.0), known)
    assert found.ratio.estimate == pytest.approx(1.1)
    assert (found.ratio.low, found.note, found.word) == (None, note, "")


@pytest.mark.parametrize(("seconds", "word"), [(10.2, "not told apart"), (13.0, "slower"), (7.5, "faster")])
def test_accepted_runs_give_the_interval_and_come_before_the_calibration(seconds: float, word: str) -> None:
    found = pair(run_of(10.0), run_of(seconds), Known(accepted(9.8, 10.0, 10.1, 10.3), CALIBRATION))
    assert found.ratio.low < found.ratio.estimate < found.ratio.high
    assert found.ratio.estimate == pytest.approx(seconds / 10)
    assert (found.word, found.note) == (word, ACCEPTED)


@pytest.mark.parametrize("baseline", [None, accepted(9.8, 10.0)])
def test_a_calibration_gives_the_interval_where_accepted_runs_are_too_few(baseline: Baseline | None) -> None:
    found = pair(run_of(10.0), run_of(13.0), Known(baseline, CALIBRATION))
    assert (found.word, found.note) == ("slower", CALIBRATED)


def test_the_interval_covers_the_truth_as_often_as_promised() -> None:
    """Two runs of one build, among accepted ones that differ like them, each by a level of its own."""
    rng, tried = np.random.default_rng(1), 300
    covered = 0
    for _ in range(tried):
        first, second, *others = 10 * np.exp(rng.normal(0, 0.03, size=7))
        ratio = pair(run_of(first), run_of(second), Known(accepted(*others))).ratio
        covered += ratio.low < 1 < ratio.high
    assert 0.92 <= covered / tried <= 0.98
    # The runs' own intervals, over sessions of one hour, would cover too rarely: 2 % to either side here.
    apart = [abs(math.log(a / b)) > 0.02 * math.sqrt(2) for a, b in np.exp(rng.normal(0, 0.03, size=(tried, 2)))]
    assert np.mean(apart) > 0.3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"machine": records.MACHINE | {"key": "cuda-8xother"}},
            f"different machines ({KEY}, cuda-8xother): times are not compared",
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
    found = pair(run_of(), run_of(**changes), Known(accepted(9.8, 10.0, 10.1), CALIBRATION))
    assert found.ratio is None
    assert message in found.note
    assert (found.word, found.grew) == ("", "")


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
    for known in (Known(), Known(accepted(9.8, 10.0, 10.1, 10.3), CALIBRATION)):
        for first, second in ((senseless, run_of()), (run_of(), senseless)):
            found = compare(first, second, known)
            assert found.pairs[0].note in (NONSENSE, UNKNOWN) or found.pairs[0].ratio is not None
            assert render.terminal(found, 160, color=False)
            assert render.to_html(found)


def test_differences_around_the_runs_are_listed() -> None:
    environment = {"versions": {"torch": "2.13.0", "nccl": "2.20"}, "commit": "def5678", "dirty": True}
    machine = records.make().machine.model_dump() | {"system": "Linux 7"}
    found = compare(records.make(), records.make(environment=environment, machine=machine, tolerance=0.1), Known())
    assert [(d.what, d.first, d.second) for d in found.differences] == [
        ("machine system", "Linux 6", "Linux 7"),
        ("commit", "abc1234", "def5678 with uncommitted changes"),
        ("torch", "2.15.0", "2.13.0"),
        ("nccl", "-", "2.20"),
        ("tolerance", "0.05", "0.1"),
    ]
    assert compare(records.make(), records.make(), Known()).differences == ()
    hashes = {"lenet": records.LENET.hash, "more": "0" * 12}
    assert compare(run_of(), run_of(workload_hashes=hashes), Known()).differences == ()
    (found,) = compare(run_of(), run_of(workload_hashes=hashes | {"lenet": "1" * 12}), Known()).differences
    assert found.what == "definition of workload lenet"


def test_cells_of_one_run_alone_are_named() -> None:
    first = records.make(cells=records.matrix(modes=("strong",), world_sizes=(1, 2)))
    second = records.make(cells=records.matrix(modes=("strong",), world_sizes=(2, 4)))
    found = compare(first, second, Known())
    assert [pair.name for pair in found.pairs] == ["ddp lenet strong 2"]
    text = render.terminal(found, 160, color=False)
    assert "Only in the first run: ddp lenet strong 1." in text
    assert "Only in the second run: ddp lenet strong 4." in text


def test_one_device_is_one_cell_in_both_modes() -> None:
    strong, weak = (
        records.make(cells=records.matrix(modes=(mode,), one_device_s=seconds))
        for mode, seconds in (("strong", 10.0), ("weak", 11.0))
    )
    found = compare(strong, weak, Known())
    [one] = found.pairs
    assert (one.name, one.ratio.estimate) == ("ddp lenet strong 1", pytest.approx(1.1))
    assert (found.only_first, found.only_second) == (("ddp lenet strong 2",), ("ddp lenet weak 2",))
    both = records.make(cells=records.matrix())
    assert [each.name for each in compare(both, both, Known()).pairs] == [
        "ddp lenet strong 1",
        "ddp lenet strong 2",
        "ddp lenet weak 2",
    ]


def test_two_runs_without_a_common_cell_say_so_and_what_to_do() -> None:
    strong, weak = (records.make(cells=records.matrix(modes=(mode,), world_sizes=(2,))) for mode in ("strong", "weak"))
    said = "No cell is in both runs; measure the same trainers, workloads, modes and world sizes in both."
    assert said in render.terminal(compare(strong, weak, Known()), 160, color=False)
    assert said not in render.remarks(compare(strong, strong, Known()))


def with_waterfall(waterfall: dict[str, Any], seconds: float = 13.0) -> Record:
    return run_of(cells=[records.cell(**CELL, sec_per_epoch=records.interval(seconds), waterfalls=[waterfall])])


def test_the_part_of_a_step_that_takes_longer_is_named() -> None:
    found = pair(with_waterfall(records.waterfall()), with_waterfall(records.waterfall(exchange=0.0112)))
    assert [part.name for part in found.parts][:3] == ["ideal", "small batch", "contention + imbalance"]
    grown = {part.name: part.grew_s for part in found.parts}
    assert grown["exchange"] == pytest.approx(0.0056)
    assert sum(grown.values()) - grown["measured"] == pytest.approx(grown["measured"]), "the parts sum to the whole"
    assert found.grew.startswith("Against the first run, exchange takes 5.6 [")
    assert found.grew.endswith("] ms a step longer.")
    back = pair(with_waterfall(records.waterfall(exchange=0.0112)), with_waterfall(records.waterfall()))
    assert back.grew == "The step takes no longer than in the first run."


def test_a_part_that_its_interval_does_not_support_is_not_named() -> None:
    unsure = records.waterfall(exchange=0.0112)
    unsure["bars"][-2]["step_s"] = {"estimate": 0.0112, "low": -0.0020, "high": 0.0244}
    found = pair(with_waterfall(records.waterfall()), with_waterfall(unsure))
    assert found.grew.startswith("Which part grew is not known after")


def test_causes_that_one_run_could_not_separate_are_added_up_in_the_other() -> None:
    apart, merged = records.waterfall(), records.waterfall()
    apart["bars"] = [
        {"causes": ["contention"], "step_s": records.interval(0.001)},
        {"causes": ["imbalance"], "step_s": records.interval(0.002)},
        {"causes": ["overhead"], "step_s": records.interval(0.004)},
        {"causes": ["exchange"], "step_s": records.interval(0.008)},
    ]
    merged["bars"] = [
        {"causes": ["contention"], "step_s": records.interval(0.002)},
        {"causes": ["imbalance", "overhead"], "step_s": records.interval(0.009)},
        {"causes": ["exchange"], "step_s": records.interval(0.008)},
    ]
    parts = {part.name: part for part in pair(with_waterfall(apart), with_waterfall(merged)).parts}
    assert list(parts) == ["ideal", "contention", "imbalance + overhead", "exchange", "measured"]
    added = parts["imbalance + overhead"]
    assert added.first.estimate == pytest.approx(0.006)
    assert added.first.low is None, "what two bars have in common is not known, so their sum has no interval"
    assert added.second.low is not None
    assert added.grew_s == pytest.approx(0.003)


def test_a_step_without_a_waterfall_in_both_runs_has_no_parts() -> None:
    assert pair(run_of(), with_waterfall(records.waterfall())).parts == ()
    base = records.waterfall("base")
    assert pair(with_waterfall(base), with_waterfall(base)).parts == (), "the candidates' steps are compared"


def test_all_three_forms_say_the_same() -> None:
    known = Known(accepted(9.8, 10.0, 10.1, 10.3))
    second = with_waterfall(records.waterfall(exchange=0.0112), 13.0)
    found = compare(with_waterfall(records.waterfall(), 10.0), second, known)
    for text in (render.terminal(found, 160, color=False), render.to_markdown(found), render.to_html(found)):
        for words in ("1.300 [", "slower", "exchange takes 5.6 ", "+5.60", ACCEPTED.capitalize()):
            assert words in text.replace("\\", "")
        assert "of twenty cells that did not change, one looks changed" in text
        assert "\x1b[" not in text
    assert "\x1b[" in render.terminal(found, 160, color=True)
    assert render.EACH_FOR_ITSELF not in render.remarks(compare(run_of(), run_of(), Known())), "without intervals"


def test_nothing_in_a_record_becomes_markup() -> None:
    text = "\"><script>alert('x')</script>|`"
    found = compare(records.hostile(text), records.hostile(text + "2"), Known())
    assert "<script" not in render.to_html(found)
    assert "<script" not in render.to_markdown(found)
    same = compare(records.hostile(text), records.hostile(text), Known())
    on_one = sum(cell.world_size == 1 and cell.mode == "weak" for cell in records.full().cells)
    assert len(same.pairs) == len(records.full().cells) - on_one
    assert "<script" not in render.to_html(same)
    assert "<script" not in render.to_markdown(same)


def test_thousands_of_cells_fit_one_page() -> None:
    cells = [records.cell(trainer=f"trainer-{number}") for number in range(3_000)]
    found = compare(records.make(cells=cells), records.make(cells=cells), Known())
    page = render.to_html(found)
    assert len(page) < 10_000_000
    summary = render.to_markdown(found)
    assert "more left out here" in summary
    assert len(summary) <= MAX_CHARACTERS
    assert "800 more are not shown" in page


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two runs, in which the command is known."""
    monkeypatch.setitem(__main__.COMMANDS, "compare", command)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nscaling_report_dir = 'kept'\n")
    kept = (run_of(seconds, day=day, run_id=f"run-{day}") for day, seconds in ((1, 10.0), (2, 13.0)))
    return keep(tmp_path / "kept", *kept).parent


def test_runs_are_named_by_file_folder_or_id(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = reports / KEY / "runs" / "run-1"
    for first in (str(folder / "record.json"), str(folder), "run-1"):
        assert __main__.main(["compare", first, "run-2"]) == 0
        assert "1.300" in capsys.readouterr().out
    assert __main__.main(["compare", "--scaling-report-dir", "kept", "--markdown", "run-1", "run-2"]) == 0
    assert capsys.readouterr().out.startswith("# Two runs\n")


def test_a_record_that_is_named_may_be_a_link_and_one_in_a_named_folder_may_not(
    reports: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = reports / KEY / "runs" / "run-1"
    kept = (folder / "record.json").rename(tmp_path / "elsewhere.json")
    (folder / "record.json").symlink_to(kept)
    assert __main__.main(["compare", str(folder / "record.json"), "run-2"]) == 0
    for name in (str(folder), "run-1"):
        assert __main__.main(["compare", name, "run-2"]) == 4
        assert f"'{name}': expected a record.json, a run's folder" in capsys.readouterr().err


def test_the_accepted_runs_of_the_machine_are_used(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baselines.write(accepted(9.8, 10.0, 10.1, 10.3), reports)
    assert __main__.main(["compare", "run-1", "run-2"]) == 0
    assert "1.300 [" in capsys.readouterr().out
    (reports / KEY / "baseline.json").write_text("{")
    assert __main__.main(["compare", "run-1", "run-2"]) == 0
    captured = capsys.readouterr()
    assert "compare: without what was accepted: " in captured.err
    assert "1.300 [" not in captured.out


def test_a_page_is_written_where_it_is_asked_for(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = reports / "new" / "compare.html"
    assert __main__.main(["compare", "run-1", "run-2", "--html", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert __main__.main(["compare", "run-1", "run-2", "--html", str(reports)]) == 1
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
        status = __main__.main(["compare", *arguments])
    except SystemExit as ended:
        status = ended.code
    assert status == 4
    assert message in capsys.readouterr().err
