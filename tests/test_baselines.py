"""What may become a baseline, what it is compared with, and that a failing run never touches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite import baselines
from suite.baselines import Baseline
from suite.record import RecordError
from tests import records

KEY = "cpu-2xtest-00000000"


def test_accepted_runs_add_up_and_come_back(tmp_path: Path) -> None:
    run = records.make()
    baseline = baselines.accept(baselines.read(tmp_path, KEY), run, slower=False)
    baselines.write(baseline, tmp_path)
    again = baselines.accept(baselines.read(tmp_path, KEY), run, slower=False)
    assert len(again.runs) == 2
    assert [kept.sec_per_epoch for kept in again.accepted(run.cells[0], run)] == [13.0, 13.0]
    assert again.runs[0].environment.commit == "abc1234"


def test_another_workload_or_dataset_is_another_cell() -> None:
    run = records.make()
    baseline = baselines.accept(Baseline(machine_key=KEY), run, slower=False)
    other_hash = records.make(workload_hashes={"lenet": "000000000000"})
    other_data = records.make(datasets={"lenet": "fashion-mnist"})
    assert baseline.accepted(other_hash.cells[0], other_hash) == []
    assert baseline.accepted(other_data.cells[0], other_data) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cells": [records.cell(outcome="ERROR")]}, "a run with an ERROR"),
        ({"interrupted": True}, "cut short"),
        ({"cells": [records.cell(outcome="FAIL")]}, "--scaling-accept=slower"),
    ],
)
def test_what_is_not_accepted(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        baselines.accept(Baseline(machine_key=KEY), records.make(**changes), slower=False)


def test_an_error_is_not_accepted_as_slower_either() -> None:
    with pytest.raises(ValueError, match="never a baseline"):
        baselines.accept(Baseline(machine_key=KEY), records.make(cells=[records.cell(outcome="ERROR")]), slower=True)


def test_accepting_a_slowdown_starts_that_cell_anew_and_no_other() -> None:
    before = baselines.accept(Baseline(machine_key=KEY), records.make(), slower=False)
    slower = records.make(
        cells=[records.cell(outcome="FAIL", sec_per_epoch={"estimate": 20.0}), records.cell(world_size=2)]
    )
    after = baselines.accept(before, slower, slower=True)
    assert [kept.sec_per_epoch for kept in after.accepted(slower.cells[0], slower)] == [20.0]
    assert [kept.sec_per_epoch for kept in after.accepted(slower.cells[1], slower)] == [13.0, 13.0]


def test_a_baseline_of_another_machine_or_a_broken_one_is_refused(tmp_path: Path) -> None:
    path = baselines.write(Baseline(machine_key="another"), tmp_path)
    path.parent.rename(tmp_path / KEY)
    with pytest.raises(RecordError, match=f"baseline of machine another, not of {KEY}"):
        baselines.read(tmp_path, KEY)
    (tmp_path / KEY / "baseline.json").write_text("{")
    with pytest.raises(RecordError, match="not a whole JSON file"):
        baselines.read(tmp_path, KEY)
