"""Git as a program: it works on the folder's own repository, and failures have a readable message.

Hooks, shallow clones and folders outside of a repository: `test_checkout.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.base.git import GitError, git, toplevel
from tests.support.repositories import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "project")
    made.commit({"src/a.py": "x = 1\n"})
    return made


def test_the_folder_decides_and_not_git_dir(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git sets these variables for its hooks, and a hook may run pytest."""
    other = Repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.path / ".git" / "index"))
    assert toplevel(repository.path / "src") == repository.path.resolve()
    assert git(repository.path, "status", "--short") == ""


def test_a_missing_git_is_reported(repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="git is not on PATH: install it"):
        toplevel(repository.path)


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GitError, match=r"there is no folder .*/nowhere"):
        toplevel(tmp_path / "nowhere")


def test_a_deadline_is_kept(repository: Repository) -> None:
    with pytest.raises(GitError, match=r"git hash-object did not end within 1e-06 s"):
        git(repository.path, "hash-object", "--stdin", timeout_s=1e-6)
