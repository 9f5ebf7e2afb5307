"""What limits this process: CPU quota and memory of its container, which the machine's own do not show; descriptors.

Above a container's limit the kernel ends a process, and in Kubernetes all of them, pytest too. So workers that cannot
fit are refused before they start. The figures are the least that were seen, of torch's wheel for CUDA on a machine
without GPUs (`python -m docs.evidence.worker_memory` at 85bc9f57, docs/gpu.md); the context of a GPU, a larger model
and its data come on top.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from suite.room.errors import content
from suite.room.quiet import available_cores

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
NO_LIMIT = 1 << 60  # bytes; without a limit version 1 shows 2^63 less a page
# Pages of files. Version 1 has those of the group with all below it under other names.
WITH_CHILDREN, FILES = (re.compile(rf"^{of}(?:in)?active_file (\d+)$", re.MULTILINE) for of in ("total_", ""))
KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
LOADED_BYTES = 400_000_000  # that no other process shares: of one that has loaded torch and answered
FORKED_BYTES = 25_000_000  # of a worker forked from one
# So much for each worker is called plenty: the most that one forked held when it had trained LeNet, and five times what
# the others take at least, because no run has shown what a GPU's context and libraries add.
AMPLE_FORKED_BYTES, AMPLE_LOADED_BYTES = 325_000_000, 2_000_000_000
MOST_TEMPLATES = 4  # that load at the same time; each stays until its session has ended
REMEDY = (
    "raise the container's memory limit, or choose fewer devices (--scaling-devices), world sizes "
    "(--scaling-world-sizes), trainers or workloads"
)


@dataclass(frozen=True)
class Memory:
    """What a control group lets this process and its children use."""

    limit_bytes: int  # of the group that has least left
    left_bytes: int  # that may be used in addition. Pages of files count as left, because the kernel can drop them.
    ends_all: bool = False  # whether the kernel ends every process of the group, and not one, where they need more


def cpu_quota() -> float | None:
    """Return the least number of cores that the control group and its parents allow; None without a limit.

    Sources: cpu.max of version 2, cpu.cfs_quota_us of version 1 (kernel documentation: cgroup-v2, sched-bwc).
    """
    quotas = []
    for group in _path_up("cpu"):
        quotas += [_quota(group / "cpu.max"), _quota(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")]
    return min((quota for quota in quotas if quota is not None), default=None)


def usable_cores() -> int:
    """Return how many cores can work for this process at once: those it may run on, or fewer by its quota."""
    cores, quota = len(available_cores()), cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def threads(ranks: int) -> int | None:
    """Return how many threads each of so many ranks may compute with under a CPU quota; None where that is no less.

    Libraries count the cores of this process, and not its quota. Where threads use it up, the kernel stops all of them
    until the next period (100 ms by default).
    """
    usable = usable_cores()
    return max(1, usable // ranks) if usable < len(available_cores()) else None


def memory() -> Memory | None:
    """Return what the control group and its parents allow; None without a limit.

    Sources: memory.max, memory.high and memory.oom.group of version 2 (cgroup-v2), memory.limit_in_bytes of version 1
    (cgroup-v1/memory). A parent's limit also holds what others in it use.
    """
    found, ends_all = list[tuple[int, int]](), False
    for group in _path_up("memory"):
        used_bytes = max(map(_number, (group / "memory.current", group / "memory.usage_in_bytes")))
        stat = content(group / "memory.stat")
        given_back = sum(map(int, WITH_CHILDREN.findall(stat) or FILES.findall(stat)))
        for limit in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            if 0 <= (limit_bytes := _number(group / limit)) < NO_LIMIT:
                found.append((limit_bytes - max(0, used_bytes - given_back), limit_bytes))
        ends_all = ends_all or _number(group / "memory.oom.group") == 1
    if not found:
        return None
    left_bytes, limit_bytes = min(found)
    return Memory(limit_bytes, max(0, left_bytes), ends_all)


def ended_for_memory() -> int:
    """Return how many processes of this control group the kernel has ended so far because memory ran out."""
    for group in _path_up("memory"):
        for file in ("memory.events", "memory.oom_control"):
            if counts := KILLS.findall(content(group / file)):
                return int(counts[0])
    return 0


@contextlib.contextmanager
def allow_descriptors(more: int) -> Iterator[None]:
    """Let this process open so many more descriptors than it has, by a higher soft limit for as long as it takes.

    Processes that start meanwhile inherit the limit, because they need it too: a template has a descriptor of each
    worker, a store one of each rank, and every rank of gloo two of each other rank. The limit becomes no higher than
    needed, because a program may close all descriptors up to it. `select` cannot wait on those above 1,024, which a
    process has only where it could not open them before.

    Raises:
        ValueError: the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/dev/fd")) + more
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError):
        raise ValueError(
            f"descriptors: this run needs up to {needed}, and the hard limit of open files (ulimit -Hn) is {hard}; "
            f"raise it (as root, `ulimit -n {needed}` in the shell that starts pytest), or select fewer cells"
        ) from None
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _path_up(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that limit this process, its own first."""
    for line in content(OWN).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = GROUPS / controller if controllers else GROUPS  # version 2 has one tree for all
        for folder in (PurePosixPath(path), *PurePosixPath(path).parents):
            if ".." not in folder.parts:  # else outside of what the container has mounted, whose root is its own group
                yield root / str(folder).lstrip("/")


def _number(file: Path) -> int:
    """Return the number in a file; -1 where there is none."""
    text = content(file)
    return int(text) if text.isdecimal() else -1


def _quota(*files: Path) -> float | None:
    """Return quota over period, which version 2 keeps in one file and version 1 in two."""
    try:
        quota, period = " ".join(file.read_text(encoding="ascii") for file in files).split()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def templates() -> int:
    """Return how many templates load at the same time: one a core, and in half of a container's memory."""
    allowed = memory()
    most = MOST_TEMPLATES if allowed is None else min(MOST_TEMPLATES, _fit(allowed, forked=False) // 2)
    return max(1, min(most, usable_cores()))


def lacking(workers: int, *, forked: bool = False) -> str:
    """Return why so many more workers do not fit, how many do, and what to do; "" where they may fit.

    Those that are not forked from a template load torch by themselves, as a template does.
    """
    allowed = memory()
    if allowed is None or workers <= (fit := _fit(allowed, forked)):
        return ""
    return f"memory: {_needed(workers, allowed, forked)}: there is room for {fit}; {REMEDY}"


def tight(workers: int, *, forked: bool = False) -> str:
    """Return a sentence where so many more workers may need more than there is; "" where there is plenty."""
    allowed = memory()
    ample_bytes = workers * (AMPLE_FORKED_BYTES if forked else AMPLE_LOADED_BYTES)
    if allowed is None or ample_bytes <= allowed.left_bytes:
        return ""
    ends = "; where they need more, the kernel ends pytest, too (memory.oom.group)" if allowed.ends_all else ""
    return f"{_needed(workers, allowed, forked)}; what GPUs, models and data take comes on top{ends}"


def _needed(workers: int, allowed: Memory, forked: bool) -> str:
    needed_gb, left_gb, limit_gb = (
        each / 1e9 for each in (workers * _each_bytes(forked), allowed.left_bytes, allowed.limit_bytes)
    )
    return (
        f"{workers} worker(s) take {needed_gb:.1f} GB at least, and this container may use {left_gb:.1f} GB more of "
        f"its {limit_gb:.1f} GB"
    )


def _fit(allowed: Memory, forked: bool) -> int:
    return allowed.left_bytes // _each_bytes(forked)


def _each_bytes(forked: bool) -> int:
    return FORKED_BYTES if forked else LOADED_BYTES
