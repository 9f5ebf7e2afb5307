"""The room check: before anything is measured, name what else uses the machine, and what holds it back.

It warns and changes nothing. Everything is said in sentences for a person who can do something about it. Command lines
may hold secrets: of a process only its name is shown, and of an interpreter's the name of the script.

Not covered: what other virtual machines do to shared caches and memory, and who is busy in other PID namespaces (their
sum is seen, their names are not).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

import psutil

from suite.room import limits
from suite.room.conditions import Conditions, limit_cores
from suite.room.devices import Devices
from suite.room.gpus import Gpus
from suite.room.meter import CPUS, Meter, family
from suite.room.quiet import available_cores

# In the sample of .3 s this is one and a half ticks of the clock: a single tick, which rounding makes of nothing, is
# not enough.
NAMED_CORES = 0.05
BUSY_GPU_PERCENT = 5
KERNEL_NAME_LENGTH = 15
INTERPRETERS = re.compile(r"(python|pypy|ruby|perl|node|bash|sh|zsh|dash)[\d.]*")
PYTHON = re.compile(r"(python|pypy)[\d.]*")
FLAGS = re.compile(r"-[bBdEhiIOPqsSuvx]+")
SCRIPT = re.compile(r"[\w][\w.+-]{0,63}")

Sample = dict[psutil.Process, tuple[float, float]]


def neighbours(devices: Devices, own: Iterable[int] | None = None, sample_s: float = 0.3) -> list[str]:
    """What else uses the machine, a sentence each; empty in a quiet room.

    Args:
        devices: of the run.
        own: pids that are ours, as `Meter.watch` has it; None is this process, and what descends from it.
        sample_s: how long to look; this call lasts a little longer.
    """
    with Meter(devices) as meter:
        meter.watch(own)
        mine = family(own)
        before, first = meter.read(), _sample()
        time.sleep(sample_s)
        conditions, second = meter.since(before), _sample()
    shares = {process: share for process, share in _shares(first, second).items() if process not in mine}
    return [
        *_processes(shares),
        *_rest(conditions, sum(shares.values())),
        *_load(conditions),
        *_gpus(devices, {process.pid for process in mine}),
        *_quota(devices),
        *_governor(devices.cores or available_cores()),
        *_siblings(devices.cores),
    ]


def label(process: psutil.Process) -> str:
    """A process for a person, such as "python train.py": its name, and of an interpreter's also the script's.

    No other argument is ever shown; what a terminal would not print is replaced.
    """
    # Longer names are completed by psutil from the command line, which some programs overwrite with their arguments.
    name = process.name()[:KERNEL_NAME_LENGTH]
    script = ""
    if INTERPRETERS.fullmatch(name):
        with contextlib.suppress(psutil.Error):
            script = _script(process.cmdline()[1:], python=PYTHON.fullmatch(name) is not None)
    return "".join(character if character.isprintable() else "?" for character in f"{name} {script}".strip())


def _script(arguments: Sequence[str], python: bool) -> str:
    """The script among an interpreter's arguments; "" where it is not certain which it is."""
    rest = list(arguments)
    while python and rest and FLAGS.fullmatch(rest[0]):
        del rest[0]
    module = python and rest[:1] == ["-m"]
    found = PurePath(rest[1] if module else rest[0]).name if len(rest) > module else ""
    return found if SCRIPT.fullmatch(found) else ""


def _sample() -> Sample:
    """When each process was looked at, and the CPU seconds it had used by then."""
    taken: Sample = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            taken[process] = (time.monotonic(), used.user + used.system)
    return taken


def _shares(first: Sample, second: Sample) -> dict[psutil.Process, float]:
    """Cores that each process used from one sample to the other; one that is new had used nothing before."""
    start_s = min((at_s for at_s, _ in first.values()), default=0.0)
    shares = {}
    for process, (at_s, used_s) in second.items():
        earlier_s, earlier_used_s = first.get(process, (start_s, 0.0))
        shares[process] = max(used_s - earlier_used_s, 0.0) / max(at_s - earlier_s, 1e-3)
    return shares


def _processes(shares: dict[psutil.Process, float]) -> list[str]:
    found = []
    for process, share in sorted(shares.items(), key=lambda item: -item[1]):
        if share >= NAMED_CORES:
            with contextlib.suppress(psutil.Error):
                found.append(f"{label(process)} (pid {process.pid}) uses {share:.0%} of a core")
    return found


def _rest(conditions: Conditions, seen: float) -> list[str]:
    limit = limit_cores(conditions)
    found = []
    if conditions.foreign is not None and conditions.foreign - seen > limit:
        missing = conditions.foreign - seen
        found.append(f"processes that come and go, or that cannot be seen from here, use {missing:.0%} of a core")
    if conditions.steal is not None and conditions.steal > limit:
        found.append(f"the hypervisor keeps {conditions.steal:.0%} of a core for others")
    return found


def _load(conditions: Conditions) -> list[str]:
    if conditions.load <= conditions.cores:
        return []
    return [
        f"the load average of the last minute is {conditions.load:.1f} on {conditions.cores} cores: wait until it falls"
    ]


def _gpus(devices: Devices, own: set[int]) -> list[str]:
    found = []
    with Gpus(devices) as gpus:
        for gpu in gpus.read():
            for pid, memory_bytes in gpu.processes:
                if pid not in own:
                    size = "memory" if memory_bytes is None else f"{memory_bytes / 1e9:.1f} GB"
                    found.append(f"{_gpu_process(pid)} holds {size} of GPU {gpu.index}")
        for index, percent in gpus.busy_percent().items():
            if percent > BUSY_GPU_PERCENT:
                found.append(f"GPU {index} is busy {percent}% of the time")
    return found


def _gpu_process(pid: int) -> str:
    # In a container the pid is the host's, and may by chance be that of another process here; the name is a help only.
    try:
        return f"{label(psutil.Process(pid))} (pid {pid})"
    except psutil.Error:
        return f"process {pid}"


def _quota(devices: Devices) -> list[str]:
    needed = len(set(devices.cores)) or len(set(devices.names))
    quota = limits.cpu_quota()
    if quota is None or quota >= needed:
        return []
    return [f"this container may use {quota:g} cores and the run needs {needed}: raise its CPU limit, or use fewer"]


def _governor(cores: Sequence[int], cpus: Path = CPUS) -> list[str]:
    used = set(cores)
    saving = [core for core in used if _text(cpus / f"cpu{core}/cpufreq/scaling_governor") == "powersave"]
    if not saving:
        return []
    share = f"{len(saving)} of the {len(used)} cores in use"
    return [f"the governor of {share} is powersave, which lets clocks wander; performance keeps them up"]


def _siblings(cores: Sequence[int], cpus: Path = CPUS) -> list[str]:
    by_core: dict[str, list[int]] = {}
    for core in sorted(set(cores)):
        if shared := _text(cpus / f"cpu{core}/topology/thread_siblings_list"):
            by_core.setdefault(shared, []).append(core)
    return [
        f"cores {', '.join(map(str, threads))} are threads of one physical core: their ranks slow each other down"
        for threads in by_core.values()
        if len(threads) > 1
    ]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
