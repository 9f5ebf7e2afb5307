"""Records are read as they were written, and anything else is refused with its reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from suite.records import record
from suite.records.record import Record, RecordError
from tests.support import records


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "record.json"
    path.write_text(text)
    return path


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = records.make()
    record.write_atomically(tmp_path / "a" / "record.json", made.model_dump_json())
    assert record.read_model(tmp_path / "a" / "record.json", Record) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a whole JSON file"),
        (records.make().model_dump_json()[:-40], "not a whole JSON file"),
        ("[" * 100_000, "not a whole JSON file"),
        ("[]", "content: Input should be a valid dictionary"),
        ("{}", "run_id: Field required"),
        (json.dumps({"seed": 10**400}), "a whole number of 401 digits; ours have 20 at most"),
        (json.dumps({"schema_version": 99}), "schema version 99 is newer than 4; update torch-scaling-suite"),
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
    ids=["empty", "truncated", "deep", "list", "object", "digits", "newer", "field", "nan", "large", "outcome"],
)
def test_anything_else_is_refused_with_its_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        record.read_model(written(tmp_path, text), Record)


def test_a_missing_or_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecordError, match="cannot be read: No such file or directory; check its path"):
        record.read_model(tmp_path / "none.json", Record)
    monkeypatch.setattr(record, "MAX_RECORD_BYTES", 10)
    with pytest.raises(RecordError, match="larger than 10 bytes"):
        record.read_model(written(tmp_path, "x" * 11), Record)


def test_a_device_or_a_pipe_behind_a_records_name_is_refused(tmp_path: Path) -> None:
    """Git carries links, so that a pull request could make a run read /dev/zero without end, or wait for a writer."""
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("endless.json", "pipe.json"):
        with pytest.raises(RecordError, match=f"{name}: not a regular file"):
            record.read_model(tmp_path / name, Record)
    (tmp_path / "linked.json").symlink_to(written(tmp_path, records.make().model_dump_json()))
    assert record.read_model(tmp_path / "linked.json", Record) == records.make()


def test_a_message_about_a_file_never_steers_a_terminal(tmp_path: Path) -> None:
    content = {**records.make().model_dump(mode="json"), "\x1b[2J" + "x" * 10_000: 1}
    with pytest.raises(RecordError) as caught:
        record.read_model(written(tmp_path, json.dumps(content)), Record)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 500


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        record.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_weak_accuracies_of_schema_3_are_removed() -> None:
    """They were trained at strong scaling alone."""
    content = records.make(cells=records.matrix(accuracy=0.97)).model_dump(mode="json")
    assert [cell.accuracy for cell in Record.model_validate(content).cells] == [0.97] * 4
    older = Record.model_validate(content | {"schema_version": 3})
    assert [(cell.mode, cell.world_size, cell.accuracy) for cell in older.cells] == [
        ("strong", 1, 0.97),
        ("strong", 2, 0.97),
        ("weak", 1, 0.97),
        ("weak", 2, None),
    ]
    assert "trained at strong scaling alone" in older.cells[3].accuracy_note
