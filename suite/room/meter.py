"""Read the machine between windows: the use by others, the hypervisor's share, clocks, heat.

A reading starts no process and takes about a quarter of a millisecond with ten processes of ours. What a system does
not show is None, so that a reading succeeds wherever psutil does.

Only the cores that this process may use count: on the others of a machine, other containers work. Ours are the
controller and its descendants. `watch` looks them up once a session, because that reads every process of
the machine. What one of ours starts later counts as foreign.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from suite.room import gpus
from suite.room.conditions import TICK_S, Conditions, resolution_s
from suite.room.devices import Devices
from suite.room.errors import content
from suite.room.gpus import GpuReading, Gpus
from suite.room.quiet import available_cores

CPUS = Path("/sys/devices/system/cpu")
STAT = Path("/proc/stat")
CPUINFO = Path("/proc/cpuinfo")
CORE = re.compile(r"^cpu(\d*) +([\d ]+)$", re.MULTILINE)
STEAL = 7  # its place among the fields of a core
CPUINFO_BYTES = 1 << 16  # some forty cores; on a machine of hundreds the whole file takes longer than a reading may


@dataclass(frozen=True)
class Reading:
    """The machine at one moment. CPU times are counted from some fixed point, in seconds; None is what is not shown."""

    at_s: float  # of `time.monotonic()`
    busy_s: float  # of all processes on the cores that this process may use, without interrupts
    own_s: dict[int, float]  # of each process of ours that is still there
    load: float  # over one minute
    steal_s: float | None = None  # that the hypervisor took
    mhz: float | None = None  # of the slowest core that a rank is bound to
    gpus: tuple[GpuReading, ...] = ()
    known: frozenset[int] = frozenset()  # GPU processes that are ours or were there before the run
    cores: int = 1  # how many this process may use
    counters: int = 1  # of how many cores or sums over cores the kernel's counters were added up


class Meter:
    """A context manager that takes readings for one run; to be entered before the first worker is on a GPU."""

    def __init__(self, devices: Devices) -> None:
        self._gpus, self._cores = Gpus(devices), frozenset(available_cores())
        self._frequency = Frequency(devices.cores)
        self._own: set[psutil.Process] = set()
        self._before_run: frozenset[int] = frozenset()
        self._known: frozenset[int] = frozenset()

    def __enter__(self) -> Meter:
        self._gpus.__enter__()
        self._before_run = self._known = _pids(self._gpus.read())
        self.watch()
        return self

    def __exit__(self, *_: object) -> None:
        self._gpus.__exit__()

    def watch(self, roots: Iterable[int] | None = None) -> None:
        """Look up which processes are ours: those of the pids in `roots`, by default this one, and their descendants.

        Call it when a session's workers are warm, before its first block.
        """
        self._own = family(roots)
        own = {process.pid for process in self._own}
        here = _pids(self._gpus.read())
        # None of ours on the GPUs, although they are warm: the pids are of another namespace (a container), and ours
        # cannot be told from others. All that are there now count as known then.
        self._known = self._before_run | own if here & own else here

    def worked(self, names: Iterable[str]) -> None:
        """Read the clocks of these devices right after their window, for the next reading."""
        self._gpus.worked(names)

    def read(self) -> Reading:
        """Return a reading; processes of ours that have ended are forgotten."""
        spent = used_on(self._cores)
        at_s = time.monotonic()
        own_s = {}
        for process in list(self._own):
            try:
                used = process.cpu_times()
                own_s[process.pid] = used.user + used.system
            except psutil.Error:
                self._own.discard(process)
        return Reading(
            at_s=at_s,
            busy_s=spent.busy_s,
            own_s=own_s,
            load=psutil.getloadavg()[0],
            steal_s=spent.steal_s,
            mhz=self._frequency.slowest_mhz(),
            gpus=self._gpus.read(),
            known=self._known,
            cores=len(self._cores),
            counters=spent.counters,
        )

    def since(self, before: Reading) -> Conditions:
        """Return the conditions from an earlier reading until now."""
        return between(before, self.read())


class Used(NamedTuple):
    """CPU seconds that were used on some cores, and stolen from them, and of how many counters they are the sum."""

    busy_s: float
    steal_s: float | None
    counters: int


def used_on(cores: Collection[int], stat: Path = STAT) -> Used:
    """Return what all processes have used on these cores.

    The sum over all cores is taken from the kernel where it knows no others, because it rounds each counter down. It is
    also taken where the kernel does not show each of these (macOS, and containers under lxcfs, which shows their own).
    `stat` is a file as /proc/stat, with user, nice, system, idle, iowait, irq, softirq and steal in ticks.
    """
    shown = {name: list(map(int, ticks.split())) for name, ticks in CORE.findall(content(stat))}
    every, chosen = [shown.get("", [])], [shown.get(str(core), []) for core in cores]
    rows = chosen if all(chosen) and len(chosen) < len(shown) - 1 else every
    if not all(len(row) > STEAL for row in rows):
        machine = psutil.cpu_times()
        busy_s = machine.user + getattr(machine, "nice", 0.0) + machine.system
        return Used(busy_s, getattr(machine, "steal", None), 1)
    return Used(sum(sum(row[:3]) for row in rows) * TICK_S, sum(row[STEAL] for row in rows) * TICK_S, len(rows))


class Frequency:
    """Reads the frequency of some cores."""

    def __init__(self, cores: Iterable[int], cpus: Path = CPUS, cpuinfo: Path = CPUINFO) -> None:
        self._cores = sorted(set(cores))
        files = [cpus / f"cpu{core}" / "cpufreq" / "scaling_cur_freq" for core in self._cores]
        self._files = [file for file in files if file.is_file()]
        self._cpuinfo = cpuinfo

    def slowest_mhz(self) -> float | None:
        """Return the lowest of them, or of all cores where only /proc/cpuinfo has it; None where nothing shows it."""
        if not self._cores:
            return None
        with contextlib.suppress(OSError, ValueError):
            if self._files:
                return min(int(file.read_text()) for file in self._files) / 1000  # the files are in kHz
            with self._cpuinfo.open(encoding="ascii", errors="replace") as file:
                shown = re.findall(r"^cpu MHz\s*:\s*(\d+(?:\.\d+)?)$", file.read(CPUINFO_BYTES), re.MULTILINE)
            return min(map(float, shown), default=None)
        return None


def between(before: Reading, after: Reading) -> Conditions:
    """Return the conditions between two readings; `foreign` is None when one of ours ended, whose use is lost."""
    elapsed_s = max(after.at_s - before.at_s, TICK_S)  # nothing is counted in less than a tick
    spent = [after.own_s[pid] - used for pid, used in before.own_s.items() if pid in after.own_s]
    resolution = resolution_s(sum(used > 0 for used in spent), after.counters) / elapsed_s
    foreign = None
    if before.own_s.keys() <= after.own_s.keys():
        foreign = max(after.busy_s - before.busy_s - sum(spent), 0.0) / elapsed_s
    steal = None
    if before.steal_s is not None and after.steal_s is not None:
        steal = max(after.steal_s - before.steal_s, 0.0) / elapsed_s
    return Conditions(
        elapsed_s=round(elapsed_s, 4),
        cores=after.cores,
        steal=None if steal is None else round(steal, 4),
        foreign=None if foreign is None else round(foreign, 4),
        resolution=round(resolution, 4),
        load=round(after.load, 2),
        mhz=after.mhz,
        gpus=tuple(gpus.between(*pair, after.known, elapsed_s) for pair in zip(before.gpus, after.gpus, strict=True)),
    )


def family(roots: Iterable[int] | None = None) -> set[psutil.Process]:
    """Return these processes (by default this one) and their descendants, as far as they live."""
    processes: set[psutil.Process] = set()
    for pid in [os.getpid()] if roots is None else roots:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            processes |= {root, *root.children(recursive=True)}
    return processes


def _pids(readings: Sequence[GpuReading]) -> frozenset[int]:
    return frozenset().union(*(reading.pids for reading in readings))
