"""Find AMD's GPUs without torch: NVML shows none of them, and the kernel's driver (KFD) lists them as files.

To torch with ROCm they are devices of type "cuda", and the backend "nccl" is RCCL; so the rest of the suite treats them
as NVIDIA's, and a worker confirms their number before anything is measured. Not covered: clocks, heat, power, memory
errors, other processes and links, for which ROCm has a library of its own. No GPU of AMD has run this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from suite.room.errors import content
from suite.room.nvml import Gpu, visible

SYSTEM = Path("/sys")
NODES = Path("class/kfd/kfd/topology/nodes")  # below SYSTEM; a node is a CPU or a GPU
REMEDY = "compare with rocminfo, and see ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES"
UNREAD = "clocks, throttling, memory errors and other processes are not read on GPUs of AMD, and links are not known"


def shown(environment: Mapping[str, str] = os.environ, system: Path = SYSTEM) -> tuple[Gpu, ...]:
    """Return the GPUs that HIP would show, in its order; NVML has no handles of them.

    ROCR_VISIBLE_DEVICES chooses first; of what it leaves HIP_VISIBLE_DEVICES chooses, or CUDA_VISIBLE_DEVICES where
    that is not set (ROCm documentation, "GPU isolation techniques").
    """
    left = {gpu.uuid: gpu for gpu in _gpus(system)}
    inner = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    for setting in (environment.get("ROCR_VISIBLE_DEVICES"), inner):
        left = {uuid: left[uuid] for uuid in visible(list(left), setting)}
    return tuple(left.values())


def near(gpu: Gpu, system: Path = SYSTEM) -> tuple[int, ...]:
    """Return the cores in the NUMA node of a GPU; none where the kernel does not say."""
    listed = content(system / "bus/pci/devices" / str(gpu.handle) / "local_cpulist")
    cores: list[int] = []
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return tuple(cores)


def _gpus(system: Path) -> Iterator[Gpu]:
    nodes = [path for path in (system / NODES).glob("*") if path.name.isdigit()]
    for node in sorted(nodes, key=lambda path: int(path.name)):
        has = dict(re.findall(r"^(\w+) (\d+)$", content(node / "properties"), re.MULTILINE))
        if not int(has.get("simd_count", 0)):  # a CPU; or a GPU that this container may not use, whose file is empty
            continue
        version, location = int(has.get("gfx_target_version", 0)), int(has.get("location_id", 0))
        architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        unique = int(has.get("unique_id", 0))
        uuid = f"GPU-{unique:016x}" if unique else f"GPU-node-{node.name}"
        address = f"{int(has.get('domain', 0)):04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
        yield Gpu(uuid, f"AMD {architecture}", address, None, uuid)
