"""Git as a program: it is asked about the folder's own repository, runs no hook, and its failures are ours to read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from suite.base.git import GitError, git, is_shallow, toplevel
from tests.support.repositories import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "project")
    made.commit({"src/a.py": "x = 1\n"})
    return made


def test_the_folder_decides_and_not_git_dir(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git sets GIT_DIR for its hooks, and a hook may well run pytest."""
    other = Repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.path))
    assert toplevel(repository.path / "src") == repository.path.resolve()


def test_no_hook_runs(repository: Repository, tmp_path: Path) -> None:
    hook = repository.path / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
    git(repository.path, "checkout", "--quiet", "--detach")
    assert not (tmp_path / "ran").exists()
    repository.git("checkout", "--quiet", "main")
    assert (tmp_path / "ran").exists(), "the hook of this test does not work, so it has shown nothing"


def test_outside_of_a_repository(tmp_path: Path) -> None:
    with pytest.raises(GitError, match=r"is not inside the working tree of a git repository \(git rev-parse: "):
        toplevel(tmp_path)


def test_no_git(repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="git is not on PATH: install it"):
        toplevel(repository.path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(GitError, match=r"there is no folder .*/nowhere"):
        toplevel(tmp_path / "nowhere")


def test_a_deadline_is_kept(repository: Repository) -> None:
    with pytest.raises(GitError, match=r"git hash-object did not end within 1e-06 s"):
        git(repository.path, "hash-object", "--stdin", timeout_s=1e-6)


def test_a_shallow_clone_is_told_from_a_whole_one(repository: Repository, tmp_path: Path) -> None:
    repository.commit()
    repository.git("clone", "--quiet", "--depth=1", f"file://{repository.path}", str(tmp_path / "clone"))
    assert is_shallow(tmp_path / "clone")
    assert not is_shallow(repository.path)
