"""Records are read as they were written, and anything else is refused with its reason."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from pydantic import BaseModel

from suite.records import files, record
from suite.records.baselines import Baseline
from suite.records.calibration import Calibration
from suite.records.files import RecordError
from suite.records.history import Digest
from suite.records.record import Record
from suite.records.sweep import Sweep
from suite.verdict.metrics import Interval
from tests.support import records
from tests.support.records import written


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = records.make(seed=10**19)
    path = tmp_path / "machine" / "run" / "record.json"
    files.write_atomically(path, made.model_dump_json())
    assert files.read_model(path, Record) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "CI uploads it as another user"


def test_earlier_records_know_no_checks_to_come_and_their_number_is_bounded(tmp_path: Path) -> None:
    earlier = records.make().model_dump(mode="json")
    del earlier["checks_to_come"]
    assert files.read_model(written(tmp_path, json.dumps(earlier)), Record).checks_to_come == 0
    for number in (-1, record.MAX_CHECKS + 1):
        with pytest.raises(RecordError, match="checks_to_come: Input should be "):
            files.read_model(written(tmp_path, json.dumps({**earlier, "checks_to_come": number})), Record)


def test_an_interval_is_kept_with_its_ends_and_its_numbers_are_bounded(tmp_path: Path) -> None:
    content = records.make().model_dump(mode="json")
    [*_, cell] = content["cells"]
    cell["sec_per_epoch"] = {"estimate": 1.0, "low": 0.9, "high": 1.2}
    read = files.read_model(written(tmp_path, json.dumps(content)), Record)
    assert read.cells[-1].sec_per_epoch == Interval(1.0, 0.9, 1.2)
    assert json.loads(read.model_dump_json())["cells"] == content["cells"]
    for ends, message in (({"high": 1e101}, "1e\\+101 is out of range"), ({"more": 1.0}, "more: Unexpected keyword")):
        cell["sec_per_epoch"] = {"estimate": 1.0, "low": 0.9, **ends}
        with pytest.raises(RecordError, match=rf"sec_per_epoch.*{message}"):
            files.read_model(written(tmp_path, json.dumps(content)), Record)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a whole JSON file"),
        (records.make().model_dump_json()[:-40], "not a whole JSON file"),
        ("[" * 100_000, "not a whole JSON file"),
        ("[]", "content: Input should be a valid dictionary"),
        ("{}", "it has no schema_version, which every file of ours has; restore it"),
        (records.make().model_dump_json(exclude={"schema_version"}), "it has no schema_version"),
        ('{"schema_version": 1}', "run_id: Field required"),
        (json.dumps({"seed": 10**400}), "a whole number of 401 digits; ours have 20 at most"),
        (json.dumps({**records.make().model_dump(mode="json"), "extra": 1}), "extra: Extra inputs"),
        (
            records.make().model_dump_json().replace('"wall_s":100.0', '"wall_s":NaN'),
            "wall_s: Input should be a finite number",
        ),
        (
            records.make().model_dump_json().replace('"wall_s":100.0', '"wall_s":1e101'),
            "wall_s: Input should be less than",
        ),
        (records.make().model_dump_json().replace("NO BASELINE", "GREAT"), "cells.0.outcome: Input should be"),
    ],
    ids=[
        "empty",
        "truncated",
        "deep",
        "list",
        "object",
        "no version",
        "version",
        "digits",
        "field",
        "nan",
        "large",
        "outcome",
    ],
)
def test_anything_else_is_refused_with_its_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        files.read_model(written(tmp_path, text), Record)


@pytest.mark.parametrize("model", [Record, Digest, Baseline, Calibration, Sweep])
def test_a_file_of_a_newer_version_is_never_to_be_removed(tmp_path: Path, model: type[BaseModel]) -> None:
    path = written(tmp_path, json.dumps({"schema_version": 2, "new": "field"}))
    with pytest.raises(RecordError) as refused:
        files.read_model(path, model)
    assert str(refused.value) == (
        f"{path}: a newer version wrote it (schema version 2 is newer than 1); update torch-scaling-suite"
    )
