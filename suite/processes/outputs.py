"""What a group's processes on this host have written to stderr, and which processes they are.

torch's agent writes `<folder>/**/<local rank>/stderr.log` for each process of a group.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

TAIL_BYTES = 4000


def stderr_size(folder: Path, local: int) -> int:
    """Return how many bytes a process has written; 0 where there is no file."""
    return sum(path.stat().st_size for path in _files(folder, local))


def stderr_tail(folder: Path, local: int, after: int = 0, most: int = TAIL_BYTES) -> str:
    """Return the end of what a process wrote, at most `most` bytes; of what came after so many bytes."""
    for path in _files(folder, local):
        with path.open("rb") as file:
            file.seek(max(after, path.stat().st_size - most))
            return file.read(most).decode(errors="replace")
    return ""


def workers_of(parent: int, group: str) -> list[int]:
    """Return the processes of a group below a process, by their command lines, connected or not."""
    import psutil  # only here: a launcher may have an interpreter without it, unless its run has several hosts

    pids = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if ("--group", group) in itertools.pairwise(process.cmdline()):
                    pids.append(process.pid)
    return pids


def _files(folder: Path, local: int) -> list[Path]:
    return list(folder.glob(f"**/{local}/stderr.log"))
