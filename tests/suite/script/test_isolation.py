"""Where overlays are refused: a copy of the folder that a script begins in, and what changed all the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from suite.script import isolation
from suite.script.isolation import Kept, isolated


@pytest.fixture(autouse=True)
def refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(isolation, "_enter_own", refuse)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "train.py").write_text("pass")
    (folder / "data").symlink_to(tmp_path)
    return folder


def keep(project: Path, cache: Path, *, first: bool = True) -> Kept:
    cache.mkdir(exist_ok=True)
    folders = [str(project), str(project / "scripts"), str(cache)]
    return isolated(folders, project.parent / "scratch", [str(project / "scripts")], first=first)


def test_all_ranks_work_in_one_copy_and_what_changed_elsewhere_is_named(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    kept, other = keep(project, cache), keep(project, cache, first=False)
    begins = Path(kept.moved(str(project / "scripts")))
    assert (begins / "train.py").read_text() == "pass"
    assert begins.parent.joinpath("data").is_symlink()
    assert begins == Path(other.moved(str(project / "scripts")))
    assert begins.parent != project
    assert kept.moved(str(cache)) == str(cache)
    assert kept.note == other.note
    assert kept.note == (
        f"overlays are refused here (Operation not permitted), so that the script runs in a copy of {project}; "
        "elsewhere what it writes stays"
    )
    (begins / "snapshot.pt").write_text("state")
    assert not kept.changed()
    for number in range(7):
        (cache / f"{number}.bin").write_text("state")
    (project / "scripts" / "train.py").unlink()
    names = ", ".join(str(cache / f"{number}.bin") for number in range(5))
    assert kept.changed() == f"while the script ran, these files changed: {names} and 3 more"
    assert not other.changed()


def test_a_large_folder_is_not_copied_and_what_changed_in_it_is_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "MOST_BYTES", 3)
    kept = keep(project, tmp_path / "cache")
    assert kept.moved(str(project / "scripts")) == str(project / "scripts")
    assert "so that what the script writes is not kept apart: it may change" in kept.note
    (project / "scripts" / "train.py").write_text("other")
    (project / "snapshot.pt").write_text("state")
    changed = f"{project / 'scripts' / 'train.py'}, {project / 'snapshot.pt'}"
    assert kept.changed() == f"while the script ran, these files changed: {changed}"


def test_the_largest_folder_that_is_small_enough_is_copied(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "data.bin").write_bytes(b"1234567")
    monkeypatch.setattr(isolation, "MOST_BYTES", 6)
    kept = keep(project, tmp_path / "cache")
    assert set(kept.copies) == {str(project / "scripts")}
    assert Path(kept.moved(str(project / "scripts")), "train.py").read_text() == "pass"
    (project / "snapshot.pt").write_text("state")
    assert kept.changed() == f"while the script ran, these files changed: {project / 'snapshot.pt'}"


def test_of_too_many_files_nothing_is_said(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "MOST_WATCHED", 0)
    kept = keep(project, tmp_path / "cache")
    (project / "snapshot.pt").write_text("state")
    assert not kept.changed()
