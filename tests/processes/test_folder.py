"""Temporary folders: whose are removed, and whose never."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from suite.processes import folder
from suite.processes.folder import LOCK, TemporaryFolder

MAKE = """\
from suite.processes.folder import TemporaryFolder
made = TemporaryFolder()
(made.path / "dataset.npy").write_bytes(bytes(1000))
print(made.path, flush=True)
input()
"""

# A process that is killed when it would remove a file or a folder for the n-th time. A file system may list the lock
# before everything else.
DIES = """\
import os
import signal
import sys
from suite.processes import folder

class Listed(list):
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass

def killed_at_the_last(remove):
    def wrapped(*arguments, **options):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return remove(*arguments, **options)
    return wrapped

left, scandir = int(sys.argv[1]), os.scandir
made = folder.TemporaryFolder()
for name in ("data", "logs"):
    (made.path / name / "0").mkdir(parents=True)
    (made.path / name / "0" / "file").touch()
(made.path / "socket").touch()
os.unlink, os.rmdir = killed_at_the_last(os.unlink), killed_at_the_last(os.rmdir)
os.scandir = lambda path: Listed(sorted(scandir(path), key=lambda entry: entry.name != folder.LOCK))
made.close()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty TMPDIR."""
    empty = tmp_path / "temporary"
    empty.mkdir()
    monkeypatch.setenv("TMPDIR", str(empty))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return empty


def test_next_run_removes_the_folder_of_a_killed_one_and_no_living_ones(temporary: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    owners = [subprocess.Popen([sys.executable, "-c", MAKE], **pipes) for _ in range(2)]  # type: ignore[call-overload]
    dead, alive = (Path(owner.stdout.readline().strip()) for owner in owners)
    owners[0].kill()
    owners[0].wait()
    assert dead.is_dir(), "the owner had no time to remove it"
    own = TemporaryFolder("base-")
    assert sorted(temporary.iterdir()) == sorted([alive, own.path])
    assert (alive / "dataset.npy").stat().st_size == 1000
    owners[1].communicate("\n")
    own.close()
    own.close()
    TemporaryFolder().close()
    assert list(temporary.iterdir()) == []


def test_next_run_removes_what_is_in_the_folder_of_one_that_was_killed_while_it_removed_it(temporary: Path) -> None:
    for killed_at in range(1, 20):
        ended = subprocess.run([sys.executable, "-c", DIES, str(killed_at)], check=False, timeout=30)
        folder.remove_abandoned()
        assert [list(left.iterdir()) for left in temporary.iterdir()] in ([], [[]]), f"killed at removal {killed_at}"
        for empty in temporary.iterdir():
            empty.rmdir()
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL
    assert killed_at == 10, "there are 5 folders and 4 files to remove"


def test_folders_that_only_look_like_ours_stay(temporary: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LOCK).touch()
    (temporary / "scaling-linked").symlink_to(elsewhere)
    (temporary / "scaling-results").mkdir()
    (temporary / "scaling-results" / "figures.csv").write_text("1")
    (temporary / "scaling-notes").write_text("a file")
    TemporaryFolder().close()
    assert {path.name for path in temporary.iterdir()} == {"scaling-linked", "scaling-results", "scaling-notes"}
    assert (elsewhere / LOCK).exists()
    assert (temporary / "scaling-results" / "figures.csv").exists()


def test_a_folder_is_locked_until_its_owner_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "HELD_S", 0.1)
    with (
        folder.locked(tmp_path / "machine"),
        pytest.raises(TimeoutError, match="another process has held its lock"),
        folder.locked(tmp_path / "machine"),
    ):
        pass
    with folder.locked(tmp_path / "machine"):
        assert list((tmp_path / "machine").iterdir()) == [], "no file is left that a user would commit"
