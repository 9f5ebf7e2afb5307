"""The machine a run takes place on: what goes into its key, and what is recorded with it.

The key is hardware and topology only. Versions of driver, torch or NCCL are recorded and not keyed, because an upgrade
is exactly what must be comparable with the runs before it. Reads /proc, psutil and NVML; changes nothing, and does not
load torch.
"""

from __future__ import annotations

import hashlib
import platform
import re
from pathlib import Path

import psutil

from suite.base.git import GitError, git
from suite.records.record import Machine
from suite.room.devices import Devices, visible_handles


def describe(devices: Devices) -> Machine:
    """This machine, as the record keeps it.

    Args:
        devices: of the run. A run on CPU workers and one on GPUs have different keys on the same machine.
    """
    cores = psutil.cpu_count(logical=True) or 1
    memory = psutil.virtual_memory().total
    model = _cpu_model()
    gpus, topology, driver = _gpus() if devices.kind == "cuda" else ((), "", "")
    hardware = [model, str(cores), str(psutil.cpu_count(logical=False)), str(round(memory / 2**30)), *gpus, topology]
    digest = hashlib.sha256("\n".join(hardware).encode()).hexdigest()[:8]
    what = f"{len(gpus)}x{_slug(gpus[0])}" if gpus else f"{cores}x{_slug(model)}"
    return Machine(
        key=f"{devices.kind}-{what}-{digest}",
        host=_host_id(),
        cpu_model=model,
        cpu_cores=cores,
        memory_bytes=memory,
        gpus=gpus,
        gpu_topology=topology,
        driver=driver,
        system=f"{platform.system()} {platform.release()}",
    )


def git_state(folder: Path) -> tuple[str, bool]:
    """The commit checked out in `folder`, and whether tracked files differ; ("unknown", False) outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return "unknown", False
    return commit, bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))


def main_branch(folder: Path) -> str:
    """What the remote has checked out, else a local main or master; empty where there is none of them."""
    remote = _git(folder, "symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD")
    known = (
        name for name in ("main", "master") if _git(folder, "rev-parse", "--verify", "--quiet", f"refs/heads/{name}")
    )
    return remote or next(known, "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        return git(folder, *arguments)
    except GitError:
        return None


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if found:
            return found.group(1).strip()
    return platform.processor() or platform.machine()


def _host_id() -> str:
    """Tells hosts apart without naming them: a digest of the machine id, or of the network name where there is none."""
    machine_id = Path("/etc/machine-id")
    text = machine_id.read_text().strip() if machine_id.is_file() else ""
    return hashlib.sha256((text or platform.node()).encode()).hexdigest()[:12]


def _gpus() -> tuple[tuple[str, ...], str, str]:
    """Names of the visible GPUs, how each pair is connected (NVML's common-ancestor level), the driver's version."""
    import pynvml

    with visible_handles() as handles:
        names = tuple(_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        levels = []
        for first, handle in enumerate(handles):
            for other in handles[first + 1 :]:
                try:
                    levels.append(str(pynvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)))
                except pynvml.NVMLError:
                    levels.append("?")
    return names, ",".join(levels), driver


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:24].strip("-")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
