"""Temporary folders: whose are removed, and whose never."""

from __future__ import annotations

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
