"""Time of this process's cores that other processes had (worker's side, Linux).

A core is busy or idle. What it was neither idle nor busy with this process, it was busy with others: processes, the
kernel's own threads, interrupts, or another guest of the hypervisor. The kernel counts idle time by core in
microseconds (cpuidle), and the CPU time of a process, with all its threads, in nanoseconds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
TASKS = Path("/proc/self/task")


class Others:
    """Counts from the moment this object is made."""

    def __init__(self, cpus: Path = CPUS, tasks: Path = TASKS) -> None:
        """Begin on the cores that this process is bound to."""
        self._cpus, self._tasks = cpus, tasks
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._before = self._read()

    def read_ns(self) -> int | None:
        """Return the nanoseconds that others had until now, over all cores of this process.

        None where the kernel does not count, and where this process has children, whose time is not that of others.
        """
        after = self._read()
        if self._before is None or after is None or self._parent():
            return None
        wall_ns, idle_ns, own_ns = (now - then for now, then in zip(after, self._before, strict=True))
        return max(0, len(self._cores) * wall_ns - idle_ns - own_ns)

    def _read(self) -> tuple[int, int, int] | None:
        """Return the time, the idle time of all cores, and this process's CPU time; None where they are not counted.

        An idle core's time is counted when it wakes, so this thread visits each of them.
        """
        idle_us = 0
        if not self._cores:
            return None
        try:
            for core in self._cores:
                if len(self._cores) > 1:
                    os.sched_setaffinity(0, {core})
                states = list((self._cpus / f"cpu{core}" / "cpuidle").glob("state*/time"))
                if not states:
                    return None
                idle_us += sum(int(state.read_text(encoding="ascii")) for state in states)
        except (OSError, ValueError):
            return None
        finally:
            if len(self._cores) > 1:
                os.sched_setaffinity(0, self._cores)
        return time.perf_counter_ns(), 1000 * idle_us, time.process_time_ns()

    def _parent(self) -> bool:
        """Return whether this process has children, or may have some."""
        try:
            return any(file.read_text(encoding="ascii").strip() for file in self._tasks.glob("*/children"))
        except OSError:
            return True
