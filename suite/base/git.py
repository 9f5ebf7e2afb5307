"""Git as a program: asked about the user's repository, and run so that neither hooks nor surroundings interfere."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

QUESTION_TIMEOUT_S = 30.0
FULL_NAME = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")  # of a commit, in SHA-1 or SHA-256

# Git sets these for what it starts (hooks, `rebase --exec`); they would name another repository than the folder's.
_ANOTHER_REPOSITORY = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
)
# A question never waits for a password, and never has a partial clone fetch from its remote behind the user's back.
_OFFLINE = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
_INERT = ("core.hooksPath=/dev/null", "core.fsmonitor=false")


class GitError(Exception):
    """Git is missing, refused, or did not answer; the text is what git said last."""


def git(
    folder: Path,
    *arguments: str,
    timeout_s: float = QUESTION_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run one git command in `folder`, without hooks.

    Args:
        folder: where it runs; the repository is the one around it, whatever GIT_DIR says.
        arguments: the subcommand and its arguments; whoever passes a stranger's text on guards it against being read
            as an option (`--end-of-options`, `--`).
        timeout_s: seconds it may take.
        environment: further variables.

    Returns:
        Its stdout without the final line end.

    Raises:
        GitError: git is not installed, failed, or took too long.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _ANOTHER_REPOSITORY}
    command = ["git", *(part for setting in _INERT for part in ("-c", setting)), *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**inherited, **_OFFLINE, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
        )
    except OSError as error:
        without = "git is not on PATH: install it" if folder.is_dir() else f"there is no folder {folder}"
        raise GitError(f"{without} ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} did not end within {timeout_s:g} s in {folder}") from error
    if done.returncode != 0:
        said = os.fsdecode(done.stderr).strip().splitlines()
        raise GitError(f"git {arguments[0]}: {' '.join(said[-3:]) or f'exit code {done.returncode}'}")
    return os.fsdecode(done.stdout).removesuffix("\n")


def toplevel(folder: Path) -> Path:
    """The top of the working tree around `folder`, with links resolved.

    Raises:
        GitError: there is none, or git does not trust its owner; git's own words say which.
    """
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    except GitError as error:
        raise GitError(f"{folder} is not inside the working tree of a git repository ({error})") from error


def is_shallow(folder: Path) -> bool:
    """Whether the clone around `folder` lacks its older commits."""
    return git(folder, "rev-parse", "--is-shallow-repository") == "true"
