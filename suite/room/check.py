"""The room check: before anything is measured, name what else uses the machine, and what slows it down.

It warns, in sentences with a remedy, and changes nothing. Command lines may hold secrets: of a process only its name is
shown, and of an interpreter's the name of the script.

Not covered: what other virtual machines do to shared caches and memory, and the names of processes in other PID
namespaces (their sum is seen).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

import psutil

from suite.room import limits
from suite.room.conditions import Conditions, limit_cores
from suite.room.devices import Devices
from suite.room.errors import MORE_SHARED_MEMORY, content, printable
from suite.room.gpus import Gpus
from suite.room.meter import CPUS, Meter, family
from suite.room.quiet import available_cores

NAMED_CORES = 0.05  # 1.5 ticks of the clock in a sample of 0.3 s; a single tick may be rounding
BUSY_GPU_PERCENT = 5
KERNEL_NAME_LENGTH = 15
INTERPRETERS = re.compile(r"(python|pypy|ruby|perl|node|bash|sh|zsh|dash)[\d.]*")
PYTHON = re.compile(r"(python|pypy)[\d.]*")
FLAGS = re.compile(r"-[bBdEhiIOPqsSuvx]+")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only its size is read
LEAST_SHARED_BYTES = 1 << 30
SCRIPT = re.compile(r"[\w][\w.+-]{0,63}")

Sample = dict[psutil.Process, tuple[float, float]]  # when it was read, CPU seconds used by then


def neighbours(devices: Devices, own: Iterable[int] | None = None, sample_s: float = 0.3) -> list[str]:
    """Return a sentence for everything else that uses the machine; nothing in a quiet room.

    `own` are pids that are ours, as for `Meter.watch`. Processes are observed for `sample_s`.
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
        *_machine(conditions, sum(shares.values())),
        *_gpus(devices, {process.pid for process in mine}),
        *_quota(devices),
        *_shared_memory(devices),
        *_governor(devices.cores or available_cores()),
        *_siblings(devices.cores),
    ]


def label(process: psutil.Process) -> str:
    """Return a process for people, such as "python train.py": its name, and of an interpreter's also the script's.

    No other argument is ever shown; characters that a terminal would not print are replaced.
    """
    # psutil completes longer names from the command line, which some programs overwrite with their arguments.
    name = process.name()[:KERNEL_NAME_LENGTH]
    script = ""
    if INTERPRETERS.fullmatch(name):
        with contextlib.suppress(psutil.Error):
            script = _script(process.cmdline()[1:], python=PYTHON.fullmatch(name) is not None)
    return printable(f"{name} {script}".strip())


def _script(arguments: Sequence[str], python: bool) -> str:
    """Return the script among an interpreter's arguments; "" where it is not certain which it is."""
    rest = list(arguments)
    while python and rest and FLAGS.fullmatch(rest[0]):
        del rest[0]
    module = python and rest[:1] == ["-m"]
    script = PurePath(rest[1] if module else rest[0]).name if len(rest) > module else ""
    return script if SCRIPT.fullmatch(script) else ""


def _sample() -> Sample:
    """Return what each process has used that may run on a core of ours."""
    sample, cores = Sample(), set(available_cores())
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            if not hasattr(process, "cpu_affinity") or cores.intersection(process.cpu_affinity()):
                sample[process] = (time.monotonic(), used.user + used.system)
    return sample


def _shares(first: Sample, second: Sample) -> dict[psutil.Process, float]:
    """Return the cores that each process used from one sample to the other; a new one had used nothing before."""
    start_s = min((at_s for at_s, _ in first.values()), default=0.0)
    shares = {}
    for process, (at_s, used_s) in second.items():
        earlier_s, earlier_used_s = first.get(process, (start_s, 0.0))
        shares[process] = max(used_s - earlier_used_s, 0.0) / max(at_s - earlier_s, 1e-3)
    return shares


def _processes(shares: dict[psutil.Process, float]) -> Iterator[str]:
    for process, share in sorted(shares.items(), key=lambda item: -item[1]):
        if share >= NAMED_CORES:
            with contextlib.suppress(psutil.Error):
                yield f"{label(process)} (pid {process.pid}) uses {share:.0%} of a core"


def _machine(conditions: Conditions, named: float) -> Iterator[str]:
    """Yield what the whole machine shows; `named` is the cores that known processes used."""
    limit = limit_cores(conditions)
    if conditions.foreign is not None and conditions.foreign - named > limit:
        rest = conditions.foreign - named
        yield f"processes that are short-lived, or not visible from here, use {rest:.0%} of a core"
    if conditions.steal is not None and conditions.steal > limit:
        yield f"the hypervisor keeps {conditions.steal:.0%} of a core for others"
    cores = psutil.cpu_count() or 1  # the kernel has one load for all of them, whichever of them are ours
    if conditions.load > cores:
        yield f"the load average of the last minute is {conditions.load:.1f} on {cores} cores: wait until it falls"


def _gpus(devices: Devices, own: set[int]) -> Iterator[str]:
    with Gpus(devices) as gpus:
        for gpu in gpus.read():
            for pid, memory_bytes in gpu.processes:
                if pid not in own:
                    size = "memory" if memory_bytes is None else f"{memory_bytes / 1e9:.1f} GB"
                    yield f"{_gpu_process(pid)} holds {size} of GPU {gpu.index}"
        for index, percent in gpus.busy_percent().items():
            if percent > BUSY_GPU_PERCENT:
                yield f"GPU {index} is busy {percent}% of the time"


def _gpu_process(pid: int) -> str:
    # In a container the pid is the host's, and may by chance be another process's here.
    try:
        return f"{label(psutil.Process(pid))} (pid {pid})"
    except psutil.Error:
        return f"process {pid}"


def _quota(devices: Devices) -> Iterator[str]:
    needed = len(set(devices.cores)) or len(set(devices.names))
    quota = limits.cpu_quota()
    if quota is not None and quota < needed:
        yield f"this container may use {quota:g} cores and the run needs {needed}: raise its CPU limit, or use fewer"
    if quota is not None and devices.kind == "cuda" and (threads := limits.threads(devices.per_host)):
        cores = len(available_cores())
        yield (
            f"this container sees {cores} cores, and its CPU quota is {quota:g}: {devices.per_host} rank(s) compute on "
            f"them with {threads} thread(s) each; OMP_NUM_THREADS sets another number"
        )


def _shared_memory(devices: Devices, folder: Path = SHARED_MEMORY) -> Iterator[str]:
    """Yield how little there is of what NCCL exchanges through where GPUs cannot read each other's memory."""
    if devices.per_host < 2 or devices.backend(devices.here(len(devices.names))) != "nccl":
        return
    with contextlib.suppress(OSError):
        if (size := shutil.disk_usage(folder).total) < LEAST_SHARED_BYTES:
            yield f"{folder} has {size >> 20} MiB, which may be too little for NCCL: {MORE_SHARED_MEMORY}"


def _governor(cores: Sequence[int], cpus: Path = CPUS) -> Iterator[str]:
    used = set(cores)
    saving = [core for core in used if content(cpus / f"cpu{core}/cpufreq/scaling_governor") == "powersave"]
    if saving:
        share = f"{len(saving)} of the {len(used)} cores in use"
        yield f"the governor of {share} is powersave, which lets clocks vary; performance keeps them up"


def _siblings(cores: Sequence[int], cpus: Path = CPUS) -> Iterator[str]:
    by_core: dict[str, list[int]] = {}
    for core in sorted(set(cores)):
        if shared := content(cpus / f"cpu{core}/topology/thread_siblings_list"):
            by_core.setdefault(shared, []).append(core)
    for threads in by_core.values():
        if len(threads) > 1:
            names = ", ".join(map(str, threads))
            yield f"cores {names} are threads of one physical core: their ranks slow each other down"
