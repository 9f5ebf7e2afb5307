"""Records of a machine become series, unreadable ones are named, and the page shows and bounds them."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from suite.records import baselines, calibration, files, history
from suite.records.files import RecordError, read_model
from suite.records.history import Digest, Event, History
from suite.records.record import Record, differences
from suite.render import html, pages
from suite.render.html import chart
from tests.support import records
from tests.support.pages import Page
from tests.support.records import KEY, keep, run_of

PROBE = "single lenet, 1 device (how fast the machine is)"
CELL = "ddp lenet strong, 2 devices"


def times(found: History) -> list[float]:
    (series,) = found.cells
    return [run.cells[series.identity].sec_per_epoch.estimate for run in found.runs]


def page_of(found: History) -> str:
    return html.write(pages.document(found))


def test_a_cells_series_has_its_figures_in_the_order_of_the_runs(tmp_path: Path) -> None:
    figures = {"sec_per_epoch": records.interval(14.0), "efficiency": records.interval(0.8), "accuracy": 0.97}
    second = run_of(2, cells=[records.cell(world_size=2, **figures)])
    found = history.read(keep(tmp_path, second, run_of(1)))
    assert [run.environment.commit for run in found.runs] == ["commit1", "commit2"]
    (series,) = found.cells
    assert series.name == CELL
    point = found.runs[1].cells[series.identity]
    assert (point.sec_per_epoch.low, point.sec_per_epoch.high) == pytest.approx((13.3, 14.7))
    assert (point.efficiency.estimate, point.accuracy, point.outcome) == (0.8, 0.97, "NO BASELINE")
    assert found.runs[1].outcomes == {"NO BASELINE": 1}


def test_trainers_with_the_same_class_name_have_names_of_their_own(tmp_path: Path) -> None:
    runs = [run_of(1 + day, cells=[records.cell(trainer=f"{file}.py:Mine")]) for day, file in enumerate("ab")]
    found = history.read(keep(tmp_path, *runs))
    assert {series.name for series in found.cells} == {"a.Mine lenet, 1 device", "b.Mine lenet, 1 device"}


def test_runs_are_ordered_by_time_and_not_by_folder(tmp_path: Path) -> None:
    machine = keep(tmp_path, run_of(1, 1.0), run_of(2, 2.0))
    (machine / "runs" / "20260102T000000Z-commit2").rename(machine / "runs" / "0-copied")
    assert times(history.read(machine)) == [1.0, 2.0]


def test_unreadable_records_are_named_without_their_path_and_the_rest_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = keep(tmp_path, run_of(1), run_of(2))
    content = run_of(3).model_dump(mode="json")
    broken = {
        "a-truncated": json.dumps(content)[:-9],
        "b-foreign": '{"benchmarks": []}',
        "c-newer": json.dumps(content | {"schema_version": 99}),
        "d-other-machine": json.dumps(content | {"machine": content["machine"] | {"key": "cuda-8xother"}}),
        "e-too-large": json.dumps(content | {"settings": ["x" * 100_000]}),
        "f-not-finite": json.dumps(content | {"tolerance": float("nan")}),
        "g-unknown-field": json.dumps(content | {"surprise" * 1000: 1}),
    }
    for name, text in broken.items():
        (machine / "runs" / name).mkdir()
        (machine / "runs" / name / "record.json").write_text(text)
    (machine / "runs" / "h-no-record").mkdir()
    (machine / "runs" / "i-folder" / "record.json").mkdir(parents=True)
    monkeypatch.setattr(files, "MAX_RECORD_BYTES", 50_000)
    found = history.read(machine)
    assert len(found.runs) == 2
    reasons = dict(found.skipped)
    assert reasons.keys() == broken.keys() | {"i-folder"}
    assert "truncated" in reasons["a-truncated"]
    assert "newer than" in reasons["c-newer"]
    assert f"measured on machine cuda-8xother, not on {KEY}" in reasons["d-other-machine"]
    assert "larger than" in reasons["e-too-large"]
    assert "finite" in reasons["f-not-finite"]
    assert not any(str(tmp_path) in reason or len(reason) > history.MAX_REASON for reason in reasons.values())


def test_everything_but_raw_windows_is_validated(tmp_path: Path) -> None:
    content = run_of(1).model_dump(mode="json")
    path = tmp_path / "record.json"
    path.write_text(json.dumps(content | {"sessions": [{"windows": "many"}] * 3}))
    assert read_model(path, Digest).sessions == ()
    with pytest.raises(RecordError, match=r"sessions\.0"):
        read_model(path, Record)
    path.write_text(json.dumps(content | {"cells": [{"id": 1}]}))
    with pytest.raises(RecordError, match=r"cells\.0"):
        read_model(path, Digest)


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (
            records.matrix(world_sizes=(1, 2)),  # on one device strong and weak are one cell
            ["ddp lenet, 1 device", "ddp lenet strong, 2 devices", "ddp lenet weak, 2 devices", PROBE],
        ),
        ([records.cell(oversubscribed=True)], ["ddp lenet, 1 device (oversubscribed)"]),
        ([records.cell(outcome="ERROR", sec_per_epoch=None)], []),
        ([records.cell(sec_per_epoch={"estimate": -1.0})], []),
        ([records.cell(workload="undefined")], []),
    ],
)
def test_cells_with_a_time_have_a_series(tmp_path: Path, cells: list[Any], names: list[str]) -> None:
    found = history.read(keep(tmp_path, run_of(1, cells=cells)))
    assert [series.name for series in found.cells] == names
    assert sum(found.runs[0].outcomes.values()) == len(cells)


def test_a_redefined_workload_or_dataset_begins_another_series(tmp_path: Path) -> None:
    machine = keep(tmp_path, run_of(1), run_of(2, workload_hashes={"lenet": "0" * 12}), run_of(3, datasets={}))
    names = [series.name for series in history.read(machine).cells]
    assert len(names) == 3
    assert "ddp lenet strong, 2 devices (000000000000 on synthetic)" in names
    assert any(name.endswith("on no dataset)") for name in names)


def test_accepted_runs_and_the_pin_are_known_by_cell(tmp_path: Path) -> None:
    runs = [run_of(day) for day in (1, 2, 3)]
    machine = keep(tmp_path, *runs)
    baselines.write(records.accepted(*runs[:2]), tmp_path)
    found = history.read(machine)
    assert [run.accepted for run in found.runs] == [True, True, False]
    assert found.cells[0].accepted == {run.run_id for run in runs[:2]}
    assert found.cells[0].pin == runs[0].run_id


def test_an_unreadable_baseline_is_reported_and_the_history_is_kept(tmp_path: Path) -> None:
    machine = keep(tmp_path, run_of(1))
    (machine / "baseline.json").write_text("{")
    found = history.read(machine)
    assert found.baseline_problem == "not a whole JSON file (truncated?); restore it, or remove it"
    assert len(found.runs) == 1
    assert "Which runs are accepted is not known: baseline.json: not a whole" in page_of(found)


def test_nothing_is_read_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    """A pull request can bring links, of files and of folders, and the pages would show what they lead to."""
    elsewhere, machine = keep(tmp_path / "elsewhere", run_of(2), run_of(3)), keep(tmp_path / "reports", run_of(1))
    baselines.write(records.accepted(run_of(2)), tmp_path / "elsewhere")
    runs = machine / "runs"
    (runs / "of-a-file").mkdir()
    (runs / "of-a-file" / "record.json").symlink_to(elsewhere / "runs" / run_of(2).run_id / "record.json")
    (runs / "of-a-folder").symlink_to(elsewhere / "runs" / run_of(3).run_id)
    (machine / "baseline.json").symlink_to(elsewhere / "baseline.json")
    found, out = (
        history.read(machine),
        "a link leads out of the report folder; put the file or folder itself in its place",
    )
    assert [run.run_id for run in found.runs] == [run_of(1).run_id]
    assert {skipped.folder: skipped.reason for skipped in found.skipped} == {"of-a-file": out, "of-a-folder": out}
    assert found.baseline_problem == out
    calibrated = tmp_path / "elsewhere" / "calibration.json"
    calibrated.write_text("{}")
    (machine / "calibration.json").symlink_to(calibrated)
    with pytest.raises(RecordError, match=out):
        calibration.read(tmp_path / "reports", KEY)


def test_a_new_version_is_an_event_on_each_host_and_a_new_host_is_one(tmp_path: Path) -> None:
    runs = [
        run_of(1, torch="2.13.0", host="a"),
        run_of(2, torch="2.13.0", host="b"),
        run_of(3, torch="2.15.0", host="a"),
        run_of(4, torch="2.15.0", host="b"),
        run_of(5, torch="2.15.0", host="a"),
    ]
    upgrade = "torch 2.13.0 → 2.15.0"
    assert history.read(keep(tmp_path, *runs)).events == (
        Event(1, "first run on host b"),
        Event(2, upgrade),
        Event(3, upgrade),
    )


def test_a_version_that_one_run_did_not_record_is_no_change() -> None:
    assert differences({"torch": "1", "old": "2"}, {"torch": "1", "nccl": "2"}, common=True) == []


def test_the_page_shows_what_changed_on_the_machine_once_and_in_every_chart(tmp_path: Path) -> None:
    two = [records.cell(), records.cell(world_size=2)]
    runs = [run_of(day, cells=two, torch="2.13.0" if day < 3 else "2.15.0") for day in range(1, 5)]
    page = Page(page_of(history.read(keep(tmp_path, *runs))))
    [table] = [found for found in page.all("table") if "Versions and hosts that changed" in found.text]
    assert re.sub(r"\s+", " ", table.text).endswith("3 2026-01-03 torch 2.13.0 → 2.15.0 ")
    assert [found.text.count("run 3: torch 2.13.0 → 2.15.0") for found in page.all("figure")] == [2, 2]


def test_more_runs_and_cells_than_a_page_holds_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert history.MAX_RUNS <= chart.WIDTH, "a curve has a pixel for each"
    monkeypatch.setattr(history, "MAX_RUNS", 2)
    monkeypatch.setattr(history, "MAX_CELLS", 3)
    runs = [run_of(day, cells=records.matrix(trainers=("ddp", "scratch"))) for day in (1, 2, 3)]
    found = history.read(keep(tmp_path, *runs))
    assert [run.environment.commit for run in found.runs] == ["commit2", "commit3"], "the newest are kept"
    assert (found.older, len(found.cells), found.left_out) == (1, 3, 4)
    page = page_of(found)
    assert "Not on this page: 1 older run;" in page
    assert "Not on this page: 4 more cells;" in page


def test_what_no_curve_shows_of_a_cell_is_not_kept(tmp_path: Path) -> None:
    """Whole cells of a thousand runs took 730 MB."""
    long = "x" * 100_000
    machine = keep(tmp_path, *(run_of(day, cells=[records.cell(details=long)]) for day in range(1, 21)))
    history.read(machine)  # what a first call loads stays
    tracemalloc.start()
    try:
        found = history.read(machine)
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(found.runs) == 20
    assert kept_bytes < 5 * len(long)  # the newest cell of each series names it


def test_the_page_links_to_what_is_there_and_to_nothing_else(tmp_path: Path) -> None:
    machine = keep(tmp_path, run_of(1), run_of(2))
    (machine / "runs" / run_of(2).run_id).rename(machine / "runs" / "odd # name?")
    (machine / "runs" / "odd # name?" / "report.html").write_text("")
    links = [link.attributes["href"] for link in Page(page_of(history.read(machine))).all("a")]
    outside = [link for link in links if not link.startswith("#")]
    assert len(outside) == 3
    assert all((machine / unquote(link)).is_file() for link in outside)
    assert "runs/odd%20%23%20name%3F/report.html" in links


def test_the_page_shows_every_cell_with_its_points_and_what_was_accepted(tmp_path: Path) -> None:
    runs = [run_of(1, 13.0), run_of(2, 14.0)]
    empty = page_of(history.read(tmp_path / KEY))
    assert "No run of this machine could be read yet." in empty
    assert "No cell was timed." in empty
    machine = keep(tmp_path, *runs)
    baselines.write(records.accepted(runs[0]), tmp_path)
    page = page_of(history.read(machine))
    assert page.count("<figure") == 1
    assert "2 runs from 2026-01-01 to 2026-01-02 on 1 host, 1 of them accepted; 1 cell." in page
    assert "NO BASELINE, 2026-01-01, commit commit1, accepted, pinned" in page
    assert "No version and no host has changed between these runs." in page


def test_nothing_in_a_record_becomes_markup(tmp_path: Path) -> None:
    hostile = records.hostile("\"><script>alert('x')</script>")
    here = {"machine": hostile.machine.model_copy(update={"key": KEY})}
    runs = [hostile.model_copy(update={"run_id": f"{number}<script>", **here}) for number in (1, 2, 3)]
    machine = keep(tmp_path, *runs)
    (machine / "runs" / "3<script>" / "record.json").write_text('{"<script>": 1}')
    found = history.read(machine)
    assert (len(found.runs), len(found.skipped)) == (2, 1)
    page = page_of(found)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("seconds", [1e-308, 1e100])
def test_any_finite_time_can_be_shown(tmp_path: Path, seconds: float) -> None:
    cell = records.cell(sec_per_epoch={"estimate": seconds, "low": -1e100, "high": 1e100})
    runs = [run_of(1, cells=[cell]), *(run_of(day, cells=[records.cell()]) for day in range(2, 31))]
    assert "<figure" in page_of(history.read(keep(tmp_path, *runs)))
