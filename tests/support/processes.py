"""Finds and ends processes that a test did not start itself, and waits for their end or for what they send."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable

import psutil

from suite.processes.channel import Channel
from suite.processes.launchers import LauncherProcess
from suite.processes.pool import Pool


def kill_launcher(pool: Pool) -> None:
    """Send SIGKILL to the launcher of a pool, or to its template."""
    launcher_of(pool._process).kill()


def launcher_of(own: LauncherProcess) -> psutil.Process:
    """Return the launcher or template below a reaper, as soon as that has started it."""
    reaper, deadline = psutil.Process(own.pid), time.monotonic() + 30
    while not (launchers := reaper.children()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return launchers[0]


def all_end(pids: Iterable[int], *, within_s: float = 30) -> bool:
    """Wait until none of these processes runs, and say whether that came in time; a zombie does not run."""
    left = set(pids)
    deadline = time.monotonic() + within_s
    while left := {pid for pid in left if _runs(pid)}:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def arrives(channel: Channel, *, within_s: float = 30) -> bool:
    """Wait until there is something to read, or the other end has gone, and leave it there; False if it takes long."""
    return bool(select.select([channel], [], [], within_s)[0])


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
