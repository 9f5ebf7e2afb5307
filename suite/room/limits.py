"""How much CPU a container leaves us: its control group's quota, which neither core count nor affinity shows."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cpu_quota(groups: Path = GROUPS, own: Path = OWN) -> float | None:
    """Cores that the control group and all above it allow, the least of them; None without a limit, or off Linux.

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
        # A path may lie outside of what a container has mounted; its own group is then the root of the mount.
        inside = [folder for folder in (PurePosixPath(path), *PurePosixPath(path).parents) if ".." not in folder.parts]
        for folder in inside:
            relative = str(folder).lstrip("/")
            if not controllers:
                quotas.append(_version_2(groups / relative))
            elif "cpu" in controllers.split(","):
                quotas.append(_version_1(groups / "cpu" / relative))
    return min((quota for quota in quotas if quota is not None), default=None)


def _version_2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _version_1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        return None if quota < 0 else quota / int((group / "cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError, ZeroDivisionError):
        return None
