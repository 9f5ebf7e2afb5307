"""The machine a run takes place on: what goes into its key, and what is recorded with it.

The key is hardware and topology only. Versions of driver, torch or NCCL are recorded and not keyed, because an upgrade
is exactly what must be comparable with the runs before it. Reads /proc, psutil and NVML; changes nothing, and does not
load torch.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import psutil

from suite.base.git import NO_COMMIT, GitError, changes, git, git_or_none, is_unborn
from suite.processes.failure import harmless
from suite.records.record import MAX_VARIABLES, Machine
from suite.room import hardware, nvml, quiet
from suite.room.devices import AMD_UNREAD, SYSTEM, Build, Devices, amd_gpus, torch_build
from suite.room.errors import content
from suite.room.nvml import Cards, Gpu

HOST_ID = "SCALING_HOST_ID"  # the environment variable that names this host, where its own marks do not last
# What changes speed or results on a GPU, as torch, NCCL, cuBLAS and the driver read it, and their twins of AMD.
VARIABLES = re.compile(
    r"(CUBLAS|CUDA|CUDNN|HIP|HIPBLASLT|HSA|MIOPEN|NCCL|RCCL|ROCBLAS|ROCR|TORCHINDUCTOR)_\w+"
    r"|TORCH_(ALLOW_TF32_CUBLAS_OVERRIDE|BLAS_PREFER_\w+|CUDNN_\w+|DISTRIBUTED_DEBUG|FR_\w+|NCCL_\w+)"
    r"|PYTORCH_\w*ALLOC_CONF|NVIDIA_(TF32_OVERRIDE|VISIBLE_DEVICES)|(OMP|MKL)_NUM_THREADS"
)
LONGEST, LONGEST_TEXT = 200, 1000  # characters of a variable's value; of a sentence


def describe(devices: Devices, build: Build | None = None, system: Path = SYSTEM) -> Machine:
    """Return this machine as the record keeps it.

    Args:
        devices: of the run. A run on CPU workers and one on GPUs have different keys on the same machine.
        build: of torch, as `torch_build` returns it, which is the default.
        system: where the kernel shows GPUs of AMD.
    """
    if devices.kind != "cuda":
        return _machine(devices, Cards(()), ())
    if (build or torch_build()).platform == "rocm":
        return _machine(replace(devices, problem=devices.problem or AMD_UNREAD), Cards(()), amd_gpus(system=system))
    with nvml.opened() as cards:
        return _machine(devices, cards, cards.shown(os.environ.get("CUDA_VISIBLE_DEVICES")))


def variables(devices: Devices, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of a GPU run's workers that change what they do or how fast; none on CPUs."""
    if devices.kind != "cuda":
        return {}
    told = quiet.environment(inherited, devices.kind)
    names = sorted(name for name in told if VARIABLES.fullmatch(name))
    return {name: harmless(told[name])[:LONGEST] for name in names[:MAX_VARIABLES]}


def host_id(cards: Sequence[str], inherited: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str:
    """Tell hosts apart without naming them: a digest.

    It is that of `SCALING_HOST_ID` where it is set. Otherwise it is made of the machine id and of the first that is
    there of what two hosts of one image do not share: the UUIDs of all cards, the addresses of network cards, the
    mainboard's id (which only root reads), the id of this boot.

    Args:
        cards: UUIDs.
        inherited: the environment.
        root: of the file system.
    """
    if given := inherited.get(HOST_ID, "").strip():
        return _digest(given)
    network = [content(path / "address") for path in (root / "sys/class/net").glob("*") if (path / "device").exists()]
    board, boot = content(root / "sys/class/dmi/id/product_uuid"), content(root / "proc/sys/kernel/random/boot_id")
    own = sorted(cards) or sorted(network) or [board or boot]
    return _digest("\n".join([content(root / "etc/machine-id") or platform.node(), *own]))


def installed_gib(memory_bytes: int) -> int:
    """Return the size of the memory as it is sold: the next of 1, 2, 3, 4, 6, 8, 12, ... GiB.

    The kernel keeps a part for itself, which differs between its versions and never reaches the next smaller size.
    """
    power = 1 << max(0, (memory_bytes - 1).bit_length() - 30)  # GiB, rounded up
    three_quarters = power * 3 // 4
    return three_quarters if power >= 4 and memory_bytes <= three_quarters * 2**30 else power


def _machine(devices: Devices, cards: Cards, gpus: Sequence[Gpu]) -> Machine:
    cores = psutil.cpu_count(logical=True) or 1
    memory = psutil.virtual_memory().total
    model, names, topology = _cpu_model(), tuple(gpu.name for gpu in gpus), _topology(gpus)
    hardware_key = [model, str(cores), str(psutil.cpu_count(logical=False)), str(installed_gib(memory)), *names]
    digest = _digest("\n".join([*hardware_key, topology, *_place(devices)]), 8)
    what = f"{len(names)}x{_slug(names[0])}" if names else f"{cores}x{_slug(model)}"
    several = f"{devices.hosts}x" if devices.hosts > 1 else ""
    return Machine(
        key=f"{several}{devices.kind}-{what}-{digest}",
        host=host_id([card.uuid for card in cards.whole]),
        cpu_model=model,
        cpu_cores=cores,
        memory_bytes=memory,
        gpus=names,
        gpu_topology=topology,
        cards=hardware.cards(gpus),
        problem=devices.problem[:LONGEST_TEXT],
        driver=cards.driver,
        system=f"{platform.system()} {platform.release()}",
        hosts=devices.hosts,
        per_host=devices.per_host,
    )


def _place(devices: Devices) -> list[str]:
    """Return what tells runs on other devices of the machine apart, so that nothing compares them.

    That is which GPUs they are, unless they are the first that CUDA shows, because links between others may differ; and
    on several hosts how many of each, which decides from where on a world size crosses the network.
    """
    used = sorted(set(devices.names))
    others = devices.kind == "cuda" and used != sorted(f"cuda:{index}" for index in range(len(used)))
    return [*(used if others else ()), *([str(devices.per_host)] if devices.hosts > 1 else ())]


def git_state(folder: Path, used: Iterable[Path] = ()) -> tuple[str, bool, str]:
    """Return the checked-out commit of `folder`, and whether the commit alone would give other code.

    That is so where tracked files differ from it, or where `used`, which are files and folders, have files that git
    neither tracks nor ignores; what runs write does not count. Where git does not tell, the commit is "unknown", and
    the third value says why.
    """
    try:
        commit, changed = git(folder, "rev-parse", "HEAD"), changes(folder, _inside(folder, used))
    except GitError as error:
        why = NO_COMMIT if is_unborn(folder) else str(error)
        return "unknown", False, harmless(why)[:LONGEST_TEXT]
    return commit, bool(changed), ""


def main_branch(folder: Path, used: Iterable[tuple[Path, str]] = ()) -> str:
    """Return the branch that the remote has checked out, else a local main or master.

    Empty without any of them, and where it lacks one of `used`: a file here, and a name that is in its text.
    """
    remote = git_or_none(folder, "symbolic-ref", "--quiet", "refs/remotes/origin/HEAD")
    refs = (remote, "refs/heads/main", "refs/heads/master")
    known = (ref for ref in refs if ref and git_or_none(folder, "rev-parse", "--verify", "--quiet", ref))
    if (ref := next(known, None)) is None:
        return ""
    for path, name in used:
        for file in _inside(folder, [path]):
            text = git_or_none(folder, "show", f"{ref}:./{file.relative_to(folder.resolve())}")
            if text is None or not re.search(rf"\b{re.escape(name)}\b", text):
                return ""
    return re.sub("^refs/(heads|remotes)/", "", ref)


def _inside(folder: Path, used: Iterable[Path]) -> list[Path]:
    """Return which of the files and folders exist below `folder`, as whole paths."""
    return [path.resolve() for path in used if path.exists() and path.resolve().is_relative_to(folder.resolve())]


def _cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", content(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _topology(gpus: Sequence[Gpu]) -> str:
    """Return how the GPUs are connected: "NV18" where all pairs are alike, else "0-1 NV4, 0-2 SYS, ..."."""
    ends = {gpu.uuid: nvml.link_ends(gpu) for gpu in gpus}
    pairs = {(a, b): nvml.link(gpus[a], gpus[b], ends) for a, b in combinations(range(len(gpus)), 2)}
    if len(set(pairs.values())) == 1:
        return next(iter(pairs.values()))
    return ", ".join(f"{a}-{b} {how}" for (a, b), how in pairs.items())


def _digest(text: str, length: int = 12) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:length]  # a variable may be any bytes


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:24].strip("-")
