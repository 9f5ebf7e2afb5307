"""Real processes that keep a core busy."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

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
