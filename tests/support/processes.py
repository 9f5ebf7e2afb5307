"""Waits for the end of processes that a test did not start itself."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil


def all_end(pids: Iterable[int], *, within_s: float = 30) -> bool:
    """Wait until none of these processes runs, and say whether that came in time; a zombie does not run."""
    left = set(pids)
    deadline = time.monotonic() + within_s
    while left := {pid for pid in left if _runs(pid)}:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
