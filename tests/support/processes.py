"""Processes that keep a core busy, and ones that a test did not start itself: found, ended, and waited for."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

import psutil

from suite.processes.channel import Channel
from suite.processes.group import Group
from suite.processes.launchers import LauncherProcess
from suite.processes.pool import Pool

RESTARTED = (
    r"the launcher has ended: signal 9 \(SIGKILL\); dmesg may tell what ended it; "
    r"it is started again, once in a run, and what it did is repeated"
)
ENDED_AGAIN = r"the launcher has ended again: signal 9 \(SIGKILL\); dmesg may tell what ended it"


def pid_of_rank(group: Group) -> int:
    """Return the pid of rank 0, which has answered then."""
    return int(group.request_first(dict, "call", function="os:getpid", arguments={})["returned"])


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


BURN = "while True: pass"
HOSTILE_NAME = "a) R 1 (\n2 3"
RENAMED = f"""
import ctypes
ctypes.CDLL(None).prctl(15, {HOSTILE_NAME.encode()!r})  # PR_SET_NAME
print(flush=True)
{BURN}
"""


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python with these arguments; end the process and its children on leaving."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()


def wait_for_use(pid: int, seconds: float = 0.3) -> None:
    """Wait until a process has used so many more seconds of CPU."""
    process, deadline = psutil.Process(pid), time.monotonic() + 60
    enough = sum(process.cpu_times()[:2]) + seconds
    while sum(process.cpu_times()[:2]) < enough:
        assert time.monotonic() < deadline, "the machine gives it no time"
        time.sleep(0.01)
