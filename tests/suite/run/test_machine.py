"""What is recorded about the machine and the repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

from suite.run import machine


def test_the_main_branch_is_the_remotes_or_a_local_one(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=e@x"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert machine.main_branch(tmp_path) == ""
    git("init", "-b", "topic")
    git("commit", "--allow-empty", "-m", "first")
    assert machine.main_branch(tmp_path) == ""
    git("branch", "master")
    assert machine.main_branch(tmp_path) == "master"
    git("update-ref", "refs/remotes/origin/trunk", "HEAD")
    git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    assert machine.main_branch(tmp_path) == "origin/trunk"
