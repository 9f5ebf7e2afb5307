"""What a group's processes on this host have written to stderr, their stacks, and which processes they are.

torch's agent writes `<folder>/**/<local rank>/stderr.log` for each process of a group.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path

from suite.processes.failure import ASKS

TAIL_BYTES = 4000
STACKS_BYTES = 64 * 1024  # all of them: the thread that holds the others up may be the first or the last
STACKS_S = 0.5  # for a process to print them


def stderr_tail(folder: Path, local: int, after: int = 0, most: int = TAIL_BYTES) -> str:
    """Return the end of what a process wrote, at most `most` bytes; of what came after so many bytes."""
    for path in _files(folder, local):
        with path.open("rb") as file:
            file.seek(max(after, path.stat().st_size - most))
            return file.read(most).decode(errors="replace")
    return ""


def stacks(folder: Path, pids: Iterable[int], local_ranks: Iterable[int]) -> dict[int, str]:
    """Have live workers print every thread's stack, and return what each wrote since, by local rank."""
    before = {local: sum(path.stat().st_size for path in _files(folder, local)) for local in local_ranks}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, ASKS)  # `suite.rank.recorder` listens to it
    time.sleep(STACKS_S)
    return {local: stderr_tail(folder, local, size, STACKS_BYTES) for local, size in before.items()}


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
