"""Count devices without torch, and read `--scaling-devices`.

GPUs of NVIDIA are counted through NVML. It shows none of AMD's, which the kernel's driver (KFD) lists as files. To
torch with ROCm these are devices of type "cuda", and the backend "nccl" is RCCL, so the rest of the suite treats them
as NVIDIA's; a worker confirms their number before anything is measured. Not covered of AMD: clocks, heat, power, memory
errors, other processes and links, for which ROCm has a library of its own. No GPU of AMD has run this.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from suite.room import nvml
from suite.room.errors import content
from suite.room.limits import cpu_quota, usable_cores
from suite.room.quiet import available_cores

SYSTEM = Path("/sys")
KFD_NODES = Path("class/kfd/kfd/topology/nodes")  # below SYSTEM; a node is a CPU or a GPU
AMD_REMEDY = "compare with rocminfo, and see ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES"
AMD_UNREAD = (
    "clocks, throttling, memory errors and other processes are not read on GPUs of AMD, and links are not known"
)
TOO_FEW = "check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"
ONE_SLICE = (
    "CUDA shows a process one MIG slice; for more devices end the MIG mode of the cards (as root, nvidia-smi -mig 0)"
)
# As torch/version.py assigns them: `cuda: Optional[str] = None` or `= '13.2'`; the value without its quotes.
VERSION = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*=\s*(?:None|(['\"])(.*?)\2)", re.MULTILINE)


@dataclass(frozen=True)
class Devices:
    """The devices of a run."""

    kind: str  # "cpu" or "cuda"
    names: tuple[str, ...]  # in rank order, "cpu" or "cuda:i", also of AMD; one that occurs twice holds two ranks
    cores: tuple[int, ...]  # the cores CPU workers are pinned to on this host, in rank order; empty on CUDA
    near: tuple[tuple[int, ...], ...] = ()  # the cores in the NUMA node of each GPU of this host, where known
    problem: str = ""  # why devices that are here are not used, in a sentence; "" where there is nothing to say
    hosts: int = 1  # how many there are, with equally many of the devices each; the first is this one
    refused: str = ""  # why one of them takes no second process, and what to do; "" where all take several
    too_few: str = TOO_FEW  # what to do where there are fewer

    @property
    def remedy(self) -> str:
        """What to do where no device was found."""
        return self.problem or self.too_few

    @property
    def per_host(self) -> int:
        """How many devices each host has."""
        return len(self.names) // self.hosts

    @property
    def distinct(self) -> int:
        """How many GPUs or cores there are on all hosts; ranks that share one do not count twice."""
        return self.hosts * len(set(self.cores if self.kind == "cpu" else self.names))

    @property
    def alone(self) -> str:
        """What there is only one of, in words; "" where there are several, or none."""
        return "" if self.distinct != 1 else "one core" if self.kind == "cpu" else "one GPU"

    def here(self, world_size: int) -> tuple[str, ...]:
        """Return those of the first `world_size` devices that are on the first host, which ranks fill first."""
        return self.names[: min(world_size, self.per_host)]

    def spread(self, size: int) -> tuple[tuple[str, ...], str]:
        """Return the devices of `size` ranks, which the hosts get in turn and which may share some, and the backend."""
        names = tuple(self.names[rank // self.hosts % self.per_host] for rank in range(size))
        return names, self.backend(names[:: self.hosts])

    @property
    def gpus_needed(self) -> int:
        """How many GPUs CUDA must show for all names to exist."""
        return max((int(name.rpartition(":")[2]) + 1 for name in self.names if name != "cpu"), default=0)

    def oversubscribed(self, world_size: int) -> bool:
        """Return whether some of the first `world_size` devices are the same GPU or core."""
        names = self.here(world_size)  # the other hosts are like it
        return len(set(self.cores[: len(names)] if self.kind == "cpu" else names)) < len(names)

    def mark(self, world_size: int) -> str:
        """Return what is added to the name of what is measured on the first `world_size` devices; often ""."""
        return " (oversubscribed)" if self.oversubscribed(world_size) else ""

    def pinned(self, world_size: int) -> tuple[tuple[int, ...], ...]:
        """Return the cores that each of the first `world_size` ranks may use; empty leaves them free.

        Ranks on other hosts have none here: they choose their own (`suite.rank.arm.bind`).
        """
        here = tuple((core,) for core in self.cores[:world_size]) or self.near[:world_size]
        return here and here + ((),) * (world_size - len(here))

    def backend(self, names: Sequence[str]) -> str:
        """Return the backend of torch.distributed for these devices of one host; NCCL refuses two ranks on one GPU."""
        return "nccl" if self.kind == "cuda" and len(set(names)) == len(names) else "gloo"

    def __str__(self) -> str:
        several = f"{self.hosts}x" if self.hosts > 1 else ""
        return f"{several}{self.kind}:{self.per_host}{self.mark(len(self.names))}"


def one_host(chosen: Devices) -> Devices:
    """Return devices that are all on this host; a ValueError where they are on several."""
    if chosen.hosts > 1:
        raise ValueError(f"devices {chosen}: this command works on one host; leave out '{chosen.hosts}x'")
    return chosen


@dataclass(frozen=True)
class Survey:
    """The GPUs that CUDA or ROCm would show: torch is not loaded and no context is made."""

    # The UUID of each, and that of its card where it is a MIG slice, in torch's order; none for a GPU of AMD, whose
    # UUID torch words otherwise.
    gpus: tuple[tuple[str, ...], ...] = ()
    near: tuple[tuple[int, ...], ...] = ()  # the cores in the NUMA node of each; none where they are not known
    problem: str = ""  # why GPUs that are here cannot be used, in a sentence
    by: str = "NVML"  # who shows them
    driver: str = ""  # its version; "" where it is not known
    refused: tuple[str, ...] = ()  # why each takes no second process, and what to do; "" where it takes several
    too_few: str = TOO_FEW  # what to do where there are fewer than are needed
    remedy: str = (  # where torch shows others
        "compare the driver (nvidia-smi) with the CUDA version of this torch, and name the GPUs that torch shows in "
        "CUDA_VISIBLE_DEVICES by UUID"
    )


@dataclass(frozen=True)
class Build:
    """A torch: its version, and the platform that it is built for; "unknown" is what cannot be read."""

    version: str = "unknown"
    platform: Literal["cuda", "rocm", "cpu", "unknown"] = "unknown"


def survey(build: Build | None = None, system: Path = SYSTEM) -> Survey:
    """Return what is here for this build of torch, by default the installed one."""
    build = build or torch_build()
    if build.platform == "rocm":
        amd, mine = amd_gpus(system=system), set(available_cores())
        near = tuple(tuple(sorted(mine.intersection(_near_amd(gpu, system)))) for gpu in amd)
        return Survey(((),) * len(amd), near, by="the kernel", remedy=AMD_REMEDY)
    try:
        with nvml.opened() as cards:
            setting = os.environ.get("CUDA_VISIBLE_DEVICES")
            shown = cards.shown(setting)
            problem = "; ".join((*cards.refused, *(_unsliced(cards) if setting is None or not shown else ())))
            refused = tuple(nvml.refusal(index, nvml.compute_mode(gpu.card)) for index, gpu in enumerate(shown))
            if cards.kept_away and not (cards.whole or problem):
                return Survey(
                    problem=f"NVML counts {cards.kept_away} GPU(s), and this process may use none of them; give the "
                    "container its GPUs (docker run --gpus, nvidia.com/gpu in Kubernetes), and its user the files "
                    "/dev/nvidia*"
                )
            mine = set(available_cores())
            cores = [tuple(sorted(mine.intersection(nvml.near(gpu, max(mine) + 1)))) for gpu in shown]
    except Exception as error:  # no library, no driver or no device: CUDA shows nothing
        return Survey(problem=nvml.trouble(error))
    if shown and build.platform == "cpu":
        return Survey(
            problem=f"NVML shows {len(shown)} GPU(s), and torch {build.version} is built for CPUs alone: "
            "install one that is built for CUDA (pytorch.org/get-started)"
        )
    uuids = tuple(tuple(dict.fromkeys((gpu.uuid, gpu.card_uuid))) for gpu in shown)
    too_few = ONE_SLICE if any(gpu.uuid != gpu.card_uuid for gpu in shown) else TOO_FEW
    return Survey(uuids, tuple(cores), problem, driver=cards.driver, refused=refused, too_few=too_few)


def amd_gpus(environment: Mapping[str, str] = os.environ, system: Path = SYSTEM) -> tuple[nvml.Gpu, ...]:
    """Return the GPUs that HIP would show, in its order; NVML has no handles of them.

    ROCR_VISIBLE_DEVICES chooses first; of what it leaves HIP_VISIBLE_DEVICES chooses, or CUDA_VISIBLE_DEVICES where
    that is not set (ROCm documentation, "GPU isolation techniques").
    """
    left = {gpu.uuid: gpu for gpu in _of_kfd(system)}
    inner = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    for setting in (environment.get("ROCR_VISIBLE_DEVICES"), inner):
        left = {uuid: left[uuid] for uuid in nvml.visible(list(left), setting)}
    return tuple(left.values())


def _near_amd(gpu: nvml.Gpu, system: Path = SYSTEM) -> tuple[int, ...]:
    """Return the cores in the NUMA node of a GPU; none where the kernel does not say."""
    listed = content(system / "bus/pci/devices" / str(gpu.handle) / "local_cpulist")
    cores: list[int] = []
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return tuple(cores)


def _of_kfd(system: Path) -> Iterator[nvml.Gpu]:
    nodes = [path for path in (system / KFD_NODES).glob("*") if path.name.isdigit()]
    for node in sorted(nodes, key=lambda path: int(path.name)):
        has = dict(re.findall(r"^(\w+) (\d+)$", content(node / "properties"), re.MULTILINE))
        if not int(has.get("simd_count", 0)):  # a CPU; or a GPU that this container may not use, whose file is empty
            continue
        version, location = int(has.get("gfx_target_version", 0)), int(has.get("location_id", 0))
        architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        unique = int(has.get("unique_id", 0))
        uuid = f"GPU-{unique:016x}" if unique else f"GPU-node-{node.name}"
        address = f"{int(has.get('domain', 0)):04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
        yield nvml.Gpu(uuid, f"AMD {architecture}", address, None, uuid)


def _unsliced(cards: nvml.Cards) -> Iterator[str]:
    """Yield what is wrong with each card in MIG mode that has no slice: CUDA shows nothing of it."""
    for card in cards.whole:
        if card.slices == ():
            yield (
                f"{card.name} ({card.uuid}) is in MIG mode and has no slice; an administrator makes one (nvidia-smi "
                "mig -cgi PROFILE -C, whose profiles nvidia-smi mig -lgip lists) or ends the mode (nvidia-smi -mig 0)"
            )


def cuda_count() -> int:
    """Return the number of GPUs that CUDA or ROCm would show, and torch can use."""
    return len(survey().gpus)


def torch_build() -> Build:
    """Return which torch this is, without loading it; where that cannot be read, a worker finds out."""
    spec = importlib.util.find_spec("torch")
    try:
        source = Path(str(spec and spec.origin)).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        source = ""
    values = {name: value for name, _, value in VERSION.findall(source)}
    if "cuda" not in values:
        return Build(values.get("__version__", "unknown"))
    return Build(values["__version__"], "cuda" if values["cuda"] else "rocm" if values.get("hip") else "cpu")


_AMD = "torch calls AMD's GPUs cuda: use cuda[:N]"
_REFUSED = {
    "xpu": "Intel's GPUs need the backend xccl, and their clocks and processes are not in NVML: use cpu[:N]",
    "mps": "there is one MPS device a machine and no collective for it, so nothing can scale: use cpu[:N]",
    "hip": _AMD,
    "roc": _AMD,
}


def parse(setting: str) -> Devices:
    """Read `auto`, `cpu[:N]`, `cuda[:N]` or a list such as `cuda:0,cuda:0`.

    `cuda:2` is two GPUs; only in a list does the number name one. `2xcuda:8` is two hosts with eight GPUs each. Asking
    for CUDA where there is none gives CUDA with no devices, which the plugin refuses.

    Raises:
        ValueError: it is none of these.
    """
    if match := re.fullmatch(r"([2-9]|[1-9][0-9]{1,3})x((?:cpu|cuda):[1-9][0-9]{0,4})", setting):
        count, each = int(match[1]), parse(match[2])
        return replace(each, hosts=count, names=each.names * count)
    if setting == "auto":
        here, cpu = survey(), _cpu()
        problem = "; ".join(filter(None, (here.problem, cpu.problem)))
        return _cuda(range(len(here.gpus)), here) if here.gpus else replace(cpu, problem=problem)
    if match := re.fullmatch(r"(cpu|cuda)(?::([1-9][0-9]{0,4}))?", setting):
        if match[1] == "cpu":
            return _cpu(int(match[2] or 0))
        here = survey()
        return _cuda(range(int(match[2] or len(here.gpus))), here)
    entries = [entry.strip() for entry in setting.split(",")]
    if len(entries) > 1 and all(re.fullmatch(r"cpu(:[0-9]{1,5})?", entry) for entry in entries):
        raise ValueError(
            f"devices {setting!r}: cores have no number here, and cpu:N is N workers with a core each; "
            f"use cpu:{len(entries)} (taskset -c chooses the cores)"
        )
    if len(entries) > 1 and all(re.fullmatch(r"cuda:[0-9]{1,5}", entry) for entry in entries):
        return _cuda((int(entry.removeprefix("cuda:")) for entry in entries), survey())
    if re.match(r"(xpu|mps|hip|rocm)\b", setting):
        raise ValueError(f"devices {setting!r}: {_REFUSED[setting[:3]]}")
    if re.fullmatch(r"(cpu|cuda):0+", setting):
        raise ValueError(
            f"devices {setting!r}: the number counts devices; cpu:1 is one worker, and cuda:1 one GPU, the first that "
            "CUDA_VISIBLE_DEVICES lists"
        )
    raise ValueError(
        f"devices {setting!r}: expected auto, cpu[:N], cuda[:N] with N >= 1, a list such as cuda:0,cuda:1, or several "
        "hosts with as many each, such as 2xcuda:8"
    )


def _cpu(count: int = 0) -> Devices:
    cores, usable, problem = available_cores(), usable_cores(), ""
    if not count and usable < len(cores):
        problem = (
            f"this container sees {len(cores)} cores, and its CPU quota is {cpu_quota():g}: {usable} CPU worker(s); "
            "raise its CPU limit for more"
        )
    count = count or usable
    return Devices("cpu", ("cpu",) * count, tuple(cores[rank % len(cores)] for rank in range(count)), problem=problem)


def _cuda(indices: Iterable[int], here: Survey) -> Devices:
    chosen = tuple(indices)
    near = tuple(here.near[index] for index in chosen if index < len(here.near) and here.near[index])
    names = tuple(f"cuda:{index}" for index in chosen)
    refused = next(filter(None, (here.refused[index] for index in chosen if index < len(here.refused))), "")
    near = near if len(near) == len(chosen) else ()
    return Devices("cuda", names, (), near, here.problem, refused=refused, too_few=here.too_few)
