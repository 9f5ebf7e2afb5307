"""Run git on the user's repository: without hooks, without network, and whatever GIT_DIR says."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

TIMEOUT_S = 30.0
NO_COMMIT = "the checked-out branch has no commit yet; make one with git add and git commit"
FULL_NAME = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")  # of a commit, in SHA-1 or SHA-256

# What runs and commands write below a report folder, wherever it is: in the folder that a machine's key names.
_WRITTEN = re.compile(
    r"(.*/)?(\d+x)?(cpu|cuda)-\d+x[a-z0-9-]*-[0-9a-f]{8}/"
    r"(\.gitignore|index\.html|baseline\.json|calibration\.json|(accepted|runs|traces|sweeps)/.+)"
)

# Git sets these for its hooks and for `rebase --exec`; they would redirect a command to another repository.
_REDIRECTING = {
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
}
# Never wait for a password, and never let a partial clone fetch from its remote.
_OFFLINE = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
_WITHOUT_HOOKS = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")


class GitError(Exception):
    """Git is missing, failed, or timed out; the text ends with git's last words."""


def git(
    folder: Path, *arguments: str, timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] | None = None
) -> str:
    """Run one git command in `folder` and return its stdout without the final line end.

    Args:
        folder: where it runs; the repository is the one around it.
        arguments: the subcommand and its arguments. The caller guards text from elsewhere against being read as an
            option (`--end-of-options`, `--`).
        timeout_s: seconds it may take.
        environment: further variables.

    Raises:
        GitError: git is not installed, failed, or took too long.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
    try:
        done = subprocess.run(
            ["git", *_WITHOUT_HOOKS, *arguments],
            cwd=folder,
            env={**inherited, **_OFFLINE, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
        )
    except OSError as error:
        cause = "git is not on PATH: install it" if folder.is_dir() else f"there is no folder {folder}"
        raise GitError(f"{cause} ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} did not end within {timeout_s:g} s in {folder}; run it by hand") from error
    if done.returncode != 0:
        lines = [line.strip() for line in os.fsdecode(done.stderr).splitlines() if line.strip()]
        raise GitError(f"git {arguments[0]}: {' '.join(lines[-3:]) or f'exit code {done.returncode}'}")
    return os.fsdecode(done.stdout).removesuffix("\n")


def git_or_none(folder: Path, *arguments: str) -> str | None:
    """Return what git says, without its last line break; None where it fails."""
    try:
        return git(folder, *arguments)
    except GitError:
        return None


def toplevel(folder: Path) -> Path:
    """Return the top of the working tree around `folder`, with links resolved.

    Raises:
        GitError: there is no working tree, or git does not trust its owner.
    """
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    except GitError as error:
        raise GitError(f"{folder} is not inside the working tree of a git repository ({error})") from error


def changes(folder: Path, untracked_in: Iterable[Path] = ()) -> list[str]:
    """Return what differs from the checked-out commit in the working tree around `folder`, as paths from its top.

    What the suite itself writes is left out (`is_written`).

    Args:
        folder: anywhere in the working tree.
        untracked_in: files and folders in it in which a file counts that git neither tracks nor ignores.

    Raises:
        GitError: git failed.
    """
    status = ("status", "--porcelain", "-z", "--no-renames")
    told = [git(folder, *status, "--untracked-files=no")]
    if inside := [str(path) for path in untracked_in]:
        told.append(git(folder, "--literal-pathspecs", *status, "--untracked-files=all", "--", *inside))
    names = (entry[len("XY ") :] for entry in "".join(told).split("\0") if entry)
    return [name for name in dict.fromkeys(names) if not is_written(name)]


def is_written(name: str) -> bool:
    """Return whether a path in a repository is one that runs write in a report folder, and so no code.

    These are records, pages, traces, sweeps, the accepted baseline and the calibration of a machine.
    """
    return _WRITTEN.fullmatch(name) is not None


def is_unborn(folder: Path) -> bool:
    """Return whether `folder` is in a repository whose branch has no commit yet."""
    # Without a branch there is no repository, or a commit alone is checked out.
    branch = git_or_none(folder, "symbolic-ref", "--quiet", "HEAD")
    return branch is not None and git_or_none(folder, "rev-parse", "--verify", "--quiet", "HEAD") is None


def is_shallow(folder: Path) -> bool:
    """Return whether the clone around `folder` lacks its older commits."""
    return git(folder, "rev-parse", "--is-shallow-repository") == "true"
