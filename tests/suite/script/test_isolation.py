"""What a script writes is kept apart by overlays, and where these are refused by a copy of the folder it begins in."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.script import isolation
from suite.script.isolation import Kept, isolated
from tests.support.project import REPOSITORY

AS_ROOT = ("unshare", "--user", "--map-root-user", "--mount")
PROGRAM = """
import sys
from pathlib import Path
from suite.script.isolation import isolated
project, scratch = map(Path, sys.argv[1:])
print(isolated([str(project)], scratch, [str(project)], first=True).note)
for folder in ("data 1", "data 1/more"):
    print(*sorted(path.name for path in (project / folder).iterdir()))
    (project / folder / "snapshot.pt").touch()
(project / "read.txt").write_text("read only")
"""

may_mount = pytest.mark.skipif(
    subprocess.run([*AS_ROOT, "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True, check=False).returncode
    != 0,
    reason="this user may not mount",
)


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


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "data 1").mkdir(parents=True)
    (folder / "read.txt").write_text("kept")
    (folder / "program.py").write_text(PROGRAM)
    return folder


def run(project: Path, *user: str) -> list[str]:
    """Mount volumes in a project, keep it apart in a process, and return what that says and what is left."""
    words = f"""
        set -e
        mount -t tmpfs none 'data 1'; touch 'data 1/train.bin'
        mkdir 'data 1/more'; mount -t tmpfs none 'data 1/more'; touch 'data 1/more/test.bin'
        {" ".join(user)} {sys.executable} program.py "$PWD" "$PWD/../scratch"
        cat read.txt; echo; ls 'data 1' 'data 1/more'
    """
    done = subprocess.run(
        [*AS_ROOT, "sh", "-c", words],
        cwd=project,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@may_mount
def test_what_is_mounted_in_a_project_is_seen_and_kept(volumes: Path) -> None:
    left = ["kept", "data 1:", "more", "train.bin", "", "data 1/more:", "test.bin"]
    assert run(volumes) == ["", "more train.bin", "test.bin", *left]


@may_mount
def test_a_file_that_is_mounted_in_a_project_stays_writable(volumes: Path) -> None:
    note, *_ = run(volumes, "mount --bind read.txt read.txt;")
    read = volumes / "read.txt"
    assert note == f"no overlay can be on {read}, so that what the script writes there stays"
    assert read.read_text() == "read only"


@may_mount
def test_another_user_is_told_which_mount_refuses_overlays(volumes: Path) -> None:
    note, *_ = run(volumes, "unshare --user --map-user=1000 --map-group=1000")
    assert note.startswith(
        f"overlays are refused here ({volumes / 'data 1'} is a mount of its own), so that the script"
    )
