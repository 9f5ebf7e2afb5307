"""The hosts of a run, from its settings, its environment and the code that is checked out here.

Which code a host would run: its commit, and digests of the files by which it may differ from another host's.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import reference
import suite
from suite.base.git import git_or_none
from suite.processes import hosts
from suite.processes.hosts import Hosts
from suite.room.devices import Devices, torch_build

MOST_FILES = 1000  # of a project that differ from its commit


def commit_here(folder: Path) -> str:
    """Return the commit that is checked out in `folder`; "unknown" outside of a repository."""
    return git_or_none(folder, "rev-parse", "HEAD") or "unknown"


def digests(folder: Path) -> dict[str, str]:
    """Return a digest for each of the suite's own files, and for the project's that its commit does not have so.

    Args:
        folder: of the project; of it only Python files and pyproject.toml count.
    """
    packages = [Path(package.__path__[0]) for package in (suite, reference)]
    own = {f"{path.name}/{file.relative_to(path)}": file for path in packages for file in path.rglob("*.py")}
    wanted = ("--exclude-standard", "--", "*.py", "*pyproject.toml")
    listed = git_or_none(folder, "ls-files", "-z", "-m", "-o", *wanted) or ""
    changed = {name: folder / name for name in sorted(filter(None, listed.split("\0")))[:MOST_FILES]}
    return {name: _digest(path) for name, path in {**changed, **own}.items()}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return "none"


def hosts_of(devices: Devices) -> Hosts | None:
    """Return what the controller knows of its hosts; None for a run on one.

    Raises:
        ValueError: a variable of the environment is missing or wrong.
    """
    if devices.hosts == 1:
        return None
    here = Path.cwd()
    return hosts.from_environment(
        devices.hosts,
        devices.per_host,
        torch=torch_build().version,
        commit=commit_here(here),
        files=digests(here),
    )
