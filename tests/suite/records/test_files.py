"""Files of records are written whole or not at all, read as they were written, or refused with the reason."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
import tracemalloc
from pathlib import Path

import pytest
from pydantic import BaseModel

from suite.records import files, record
from suite.records.baselines import Baseline
from suite.records.calibration import Calibration
from suite.records.files import RecordError, read_model
from suite.records.history import Digest
from suite.records.record import Record
from suite.records.sweep import Sweep
from suite.verdict.metrics import Interval
from tests.support import records
from tests.support.records import written


def test_a_missing_or_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecordError, match="cannot be read: No such file or directory; check its path"):
        files.read_model(tmp_path / "none.json", Record)
    monkeypatch.setattr(files, "MAX_RECORD_BYTES", 10)
    with pytest.raises(RecordError, match="larger than 10 bytes"):
        files.read_model(written(tmp_path, "x" * 11), Record)
    with pytest.raises(RecordError, match="content: Input should be a valid dictionary"):
        files.read_model(written(tmp_path, "1" * 10), Record)


def test_of_a_huge_file_no_more_is_read_than_a_record_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_RECORD_BYTES", 10)
    path = written(tmp_path, "x" * 10_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match="larger than 10 bytes"):
            files.read_model(path, Record)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_device_or_a_pipe_behind_a_records_name_is_refused(tmp_path: Path) -> None:
    """Git carries links, so that a pull request could make a run read /dev/zero without end, or wait for a writer."""
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("endless.json", "pipe.json"):
        with pytest.raises(RecordError, match=f"{name}: not a regular file"):
            files.read_model(tmp_path / name, Record)


def test_a_link_is_followed_in_its_folder_and_where_it_is_named_and_not_out_of_a_folder(tmp_path: Path) -> None:
    target, own = written(tmp_path, records.make().model_dump_json()), tmp_path / "own"
    own.mkdir()
    (own / "linked.json").symlink_to(target)
    (own / "loop.json").symlink_to("loop.json")
    (tmp_path / "folder").symlink_to(own)
    assert files.read_model(own / "linked.json", Record) == records.make()
    assert files.read_inside(tmp_path, own / "linked.json", Record) == records.make()
    with pytest.raises(RecordError, match=r"linked\.json: a link leads out of the report folder; put the file"):
        files.read_inside(own, own / "linked.json", Record)
    target.rename(own / target.name)
    (own / "inside.json").symlink_to(target.name)
    assert files.read_inside(tmp_path / "folder", tmp_path / "folder" / "inside.json", Record) == records.make()
    with pytest.raises(RecordError, match=r"loop\.json: cannot be read"):
        files.read_inside(own, own / "loop.json", Record)


def test_a_message_about_a_file_never_steers_a_terminal(tmp_path: Path) -> None:
    content = {**records.make().model_dump(mode="json"), "\x1b[2J" + "x" * 10_000: 1}
    with pytest.raises(RecordError) as caught:
        files.read_model(written(tmp_path, json.dumps(content)), Record)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 500


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_takes_only_the_beginning_leaves_the_old_file(tmp_path: Path) -> None:
    """The system then writes what fits, and says how much that was; only the next write is an error."""
    path, limits = written(tmp_path, "old"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            files.write_atomically(path, "x" * (1 << 20) + "end")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_whole_on_the_disk_before_it_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run that starts meanwhile leaves it alone, and removes one that a killed run had begun."""
    path, killed = tmp_path / "own" / "record.json", tmp_path / "killed"
    files.write_atomically(path, "old")
    killed.mkdir()
    on_disk: list[tuple[str, str]] = []

    def sync(_: int) -> None:
        [begun] = set(path.parent.iterdir()) - {path}
        on_disk.append((path.read_text(), begun.read_text()))
        (killed / begun.name).touch()
        files.remove_unfinished(tmp_path)

    monkeypatch.setattr(files.os, "fsync", sync)
    files.write_atomically(path, "new")
    assert on_disk == [("old", "new")]
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path.parent]


def test_ctrl_c_after_the_new_file_took_its_place_is_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replace = written(tmp_path, "old"), os.replace

    def replace_and_interrupt(*paths: str) -> None:
        replace(*paths)
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", replace_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_where_a_file_system_has_no_locks_files_are_written_and_none_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may still write what looks unfinished."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    files.write_atomically(tmp_path / "record.json", "new")
    begun = tmp_path / ".record.json.abcd1234"
    begun.touch()
    files.remove_unfinished(tmp_path)
    assert set(tmp_path.iterdir()) == {tmp_path / "record.json", begun}


def test_a_link_or_a_pipe_with_the_name_of_an_unfinished_file_is_not_followed_and_not_waited_for(
    tmp_path: Path,
) -> None:
    link = tmp_path / ".record.json.abcd1234"
    link.symlink_to(written(tmp_path, "of the user's"))
    os.mkfifo(tmp_path / ".summary.md.abcd1234")
    files.remove_unfinished(tmp_path)
    assert link.read_text() == "of the user's"


@pytest.mark.parametrize("model", [Record, Baseline, Calibration, Sweep])
@pytest.mark.parametrize(
    "version", ["1" * 20, "1" * 400, "99", "-1", "0", "1.0", "2.0", "5.0", "6.5", "1e999", "NaN", '"5"', "true", "[5]"]
)
def test_a_hostile_schema_version_is_refused(tmp_path: Path, model: type[BaseModel], version: str) -> None:
    (tmp_path / "file.json").write_text(f'{{"schema_version": {version}}}')
    refusals = "its schema_version is .*: expected a whole number|a newer version|a whole number of|schema_version: "
    with pytest.raises(RecordError, match=rf"file\.json: ({refusals})"):
        read_model(tmp_path / "file.json", model)


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
    ids=range(12),
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
