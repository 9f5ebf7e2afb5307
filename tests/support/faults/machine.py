"""What a fault needs of the operating system, and what a run may leave there.

Linux only. Mounts need a namespace that allows them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

FAKETIME = ("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
CLOCK_FILE = "FAKETIME_TIMESTAMP_FILE"  # an environment variable; the file has what is added to the time
SETTABLE = {
    "FAKETIME_NO_CACHE": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # whoever sets a clock does not move this one
    "NO_FAKE_STAT": "1",
}
SLEEP = """\
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    return syscall(SYS_clock_nanosleep, clock, flags, until, left) ? errno : 0;
}
"""
SHARED_MEMORY = Path("/dev/shm")
FILLER = "filler"
RETRY_S = 5.0


def mount(folder: Path, mebibytes: int) -> None:
    """Mount an empty file system in memory on a folder.

    Raises:
        subprocess.CalledProcessError: this process may not.
    """
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def unmount(*folders: Path) -> None:
    subprocess.run(["umount", "--lazy", *map(str, folders)], check=False, capture_output=True)


def fill(folder: Path) -> None:
    """Write until the file system of a folder has no space left."""
    with (folder / FILLER).open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with (folder / f"{FILLER}-2").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(256))


def empty(folder: Path) -> None:
    for path in folder.glob(f"{FILLER}*"):
        path.unlink()


def remount(folder: Path, how: str) -> None:
    """Make the file system of a folder read-only ("ro") or writable ("rw"); it waits for files that are being written.

    Raises:
        subprocess.CalledProcessError: it cannot be.
    """
    deadline = time.monotonic() + RETRY_S
    while True:
        done = subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=False, capture_output=True)
        if done.returncode == 0 or time.monotonic() > deadline:
            return done.check_returncode()
        time.sleep(0.01)


def clock_libraries(folder: Path) -> str:
    """Return what LD_PRELOAD must be, so that `CLOCK_FILE` sets the clock of a process and only that one moves.

    libfaketime 0.9.10 refuses sleeps until a time of the monotonic clock where it leaves that clock as it is, so a
    library that is compiled here goes before it.

    Args:
        folder: for that library.

    Raises:
        OSError: libfaketime or a compiler is missing.
    """
    faketime = next((path for path in FAKETIME if os.path.exists(path)), None)
    if faketime is None:
        raise FileNotFoundError("libfaketime is not installed")
    compiled = folder / "sleep.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(compiled)]
    subprocess.run(command, input=SLEEP.encode(), check=True, capture_output=True)
    return f"{compiled}:{faketime}"


def marked(text: str) -> set[int]:
    """Return the processes that have a text in their environment, except zombies and this one."""
    pids = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, psutil.Error):
            if text.encode() in Path("/proc", name, "environ").read_bytes():
                pids.add(int(name))
    return {pid for pid in pids - {os.getpid()} if _runs(pid)}


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def helper(controller: int, module: str) -> int | None:
    """Return the process of a controller that runs a module (`python -m module`), the oldest one; None before it does.

    A template's workers have its command line and are younger, and templates of later sessions may be.
    """
    found: dict[int, float] = {}
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(controller).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                if "-m" in command and command[command.index("-m") + 1] == module:
                    found[process.pid] = process.create_time()
    return min(found, key=found.__getitem__, default=None)


def send(pid: int, name: str) -> None:
    """Send a process a signal by its name; one that has ended gets none."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.Signals[name])


def visit(folder: Path, said: bytes) -> socket.socket | None:
    """Connect to the controller's socket below a temporary folder, and say something; None where there is none."""
    for path in folder.glob("scaling-*/controller"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            connection.connect(str(path))
            connection.sendall(said)
            return connection
        connection.close()
    return None


def sockets(folder: Path) -> list[str]:
    """Return the names of the Unix sockets below a folder that a process has open."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line.split()[-1] for line in lines if f" {folder}/" in line]


def end(pids: set[int]) -> list[str]:
    """Kill processes, and return their command lines."""
    commands = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            commands.append(" ".join(psutil.Process(pid).cmdline())[:200])
        send(pid, "SIGKILL")
    return commands
