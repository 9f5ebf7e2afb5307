"""The process between a controller and its launcher: it finds every process that the launcher's workers started.

A process whose parent ends, also one that makes itself a daemon, becomes a child of this one
(PR_SET_CHILD_SUBREAPER). All of them are ended when the launcher ends, on SIGTERM, and when the controller dies, of
which the kernel tells by SIGTERM. SIGUSR1 ends those alone that have lost their parent. This process also drops the
older part of what a worker writes to stdout and stderr. Linux and standard library only; it sleeps nearly always.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from suite.room import quiet

TOLD = {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}
END_S = 10.0  # for the kernel to end what was killed; it may hold a process in a driver or a file system
WAKE_EVERY_S = 2.0
LOOK_AFTER = 30  # times awake, whatever the disk shows
GROWN_BYTES = 16 << 20  # less on the disk than at the last look
MOST_BYTES = 8 << 20  # of one output that are kept on the disk
KEPT_BYTES = 1 << 20  # of its end, when it had more

_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def main(arguments: Sequence[str]) -> int:
    """Run the launcher, whose module and arguments come after the pool's folder, and return as it did."""
    folder, *module = arguments
    outputs = Outputs(Path(folder))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who starts pytest may ignore it, and no child could be waited for
    quiet.die_with_parent(signal.SIGTERM)
    quiet.adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)
    launcher = os.posix_spawn(sys.executable, [sys.executable, "-m", *module], os.environ, setsigmask=[])
    statuses: dict[int, int] = {}
    while launcher not in statuses:
        told = signal.sigtimedwait(TOLD, WAKE_EVERY_S)
        statuses |= reap()
        if told is None:
            outputs.bound()
        elif told.si_signo == signal.SIGUSR1:
            end_children(but=launcher)
        elif told.si_signo == signal.SIGTERM:
            break
    end_children()
    code = os.waitstatus_to_exitcode(statuses.get(launcher, 0))
    if code < 0:  # the controller is to see the launcher's own signal
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})  # and none that has arrived meanwhile
        with contextlib.suppress(OSError):  # SIGKILL has no handler to restore
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def end_children(but: int | None = None) -> None:
    """Kill every child of this process but one, and what becomes its child by that, until none is left."""
    deadline = time.monotonic() + END_S
    while (pids := children() - {but}) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        reap(pids)


def children() -> set[int]:
    """Return the processes whose parent this one is."""
    own, pids = os.getpid(), set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ended meanwhile
            # pid (name) state parent ...; the name may have any characters
            if int(Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()[1]) == own:
                pids.add(int(name))
    return pids


def reap(pids: Sequence[int] | set[int] = (-1,)) -> dict[int, int]:
    """Reap children that have ended, all of them or these, and return their statuses by pid."""
    statuses: dict[int, int] = {}
    for wanted in pids:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(wanted, os.WNOHANG))[0]:
                statuses[ended[0]] = ended[1]
    return statuses


class Outputs:
    """What launcher and workers write to stdout and stderr. To look at all of it takes milliseconds of a core."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._free, self._times = folder, 0, 0

    def bound(self) -> None:
        """Drop the older part of long outputs, where the disk has lost space, and from time to time."""
        disk = os.statvfs(self._folder)
        free, self._times = disk.f_bavail * disk.f_frsize, self._times + 1
        if free > self._free - GROWN_BYTES and self._times < LOOK_AFTER:
            self._free = max(free, self._free)
            return
        self._free, self._times = free, 0
        for path in [*self._folder.glob("logs/**/*.log"), *self._folder.glob("*.stderr")]:
            with contextlib.suppress(OSError):
                drop_older_part(path)


def drop_older_part(path: Path) -> None:
    """Free all but the last `KEPT_BYTES` of a file above `MOST_BYTES`; its length stays, so that a writer can go on."""
    about = path.stat()
    if about.st_blocks * 512 <= MOST_BYTES:
        return
    with path.open("r+b") as file:
        libc, size = ctypes.CDLL(None, use_errno=True), ctypes.c_longlong(about.st_size - KEPT_BYTES)
        if libc.fallocate(file.fileno(), _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_longlong(0), size):
            file.truncate(0)  # a file system that cannot free a part


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
