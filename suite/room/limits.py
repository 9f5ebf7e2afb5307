"""What limits this process: its container's CPU quota, which neither core count nor affinity shows, and descriptors."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cpu_quota(groups: Path = GROUPS, own: Path = OWN) -> float | None:
    """Return the least number of cores that the control group and its parents allow; None without a limit.

    Sources: cpu.max of version 2, cpu.cfs_quota_us of version 1 (kernel documentation: cgroup-v2, sched-bwc).
    """
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for folder in (PurePosixPath(path), *PurePosixPath(path).parents):
            if ".." in folder.parts:  # outside of what the container has mounted, whose root is then its own group
                continue
            relative = str(folder).lstrip("/")
            if not controllers:
                quotas.append(_quota(groups / relative / "cpu.max"))
            elif "cpu" in controllers.split(","):
                group = groups / "cpu" / relative
                quotas.append(_quota(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us"))
    return min((quota for quota in quotas if quota is not None), default=None)


@contextlib.contextmanager
def allow_descriptors(more: int) -> Iterator[None]:
    """Let this process open so many more descriptors than it has, by a higher soft limit for as long as it takes.

    Processes that start meanwhile inherit the limit, because they need it too: a template has a descriptor of each
    worker, a store one of each rank, and every rank of gloo two of each other rank. The limit becomes no higher than
    needed, because a program may close all descriptors up to it. `select` cannot wait on those above 1,024, which a
    process has only where it could not open them before.

    Args:
        more: than are open now.

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


def _quota(*files: Path) -> float | None:
    """Return quota over period, which version 2 keeps in one file and version 1 in two."""
    try:
        quota, period = " ".join(file.read_text(encoding="ascii") for file in files).split()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
