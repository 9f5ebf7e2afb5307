"""Ask NVML about the cards of this machine. No torch is loaded, no CUDA context is made, nothing on a card is changed.

A card or a driver may refuse a query (ECC on consumer cards, processes under WSL) and still answer the others.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.room.errors import remedy_of

DEVICE_NODES = Path("/dev")
SWITCH = 2  # of NVML's nvmlIntNvLinkDeviceType_t
NAMES = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}  # as `nvidia-smi topo -m` has them
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
BY_MPS = "exclusive process, by MPS"
PIPES = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's own default of CUDA_MPS_PIPE_DIRECTORY


@dataclass(frozen=True)
class Gpu:
    """A whole card, or a MIG slice of one."""

    uuid: str  # NVML's, "GPU-..." or "MIG-..."
    name: str  # with the profile of a slice: "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    handle: Any  # NVML's, of what runs processes
    card: Any  # NVML's handle of the whole card, which has the clocks, the heat and the links
    card_uuid: str  # of the whole card
    slices: tuple[Gpu, ...] | None = None  # of a card in MIG mode; None where it is not in MIG mode


@dataclass(frozen=True)
class Cards:
    """What NVML shows."""

    whole: tuple[Gpu, ...]  # the cards that answer, in PCI order
    refused: tuple[str, ...] = ()  # why others do not answer, in words
    driver: str = ""  # its version
    kept_away: int = 0  # how many NVML counts that this process may not use, as those of other containers

    def shown(self, setting: str | None) -> tuple[Gpu, ...]:
        """Return what CUDA shows where CUDA_VISIBLE_DEVICES has this value (see `visible`)."""
        slices = {card.uuid: [mig.uuid for mig in card.slices] for card in self.whole if card.slices is not None}
        by_uuid = {gpu.uuid: gpu for card in self.whole for gpu in (card, *(card.slices or ()))}
        return tuple(by_uuid[uuid] for uuid in visible([card.uuid for card in self.whole], setting, slices))


@contextlib.contextmanager
def opened() -> Iterator[Cards]:
    """Yield the cards of this machine that this process may use; their handles are valid inside.

    Raises:
        ImportError, pynvml.NVMLError: there is no NVML to ask; `trouble` says what that means.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        whole, refused, kept_away = [], [], 0
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                if _is_ours(handle):
                    whole.append(_card(handle))
                else:
                    kept_away += 1
            except pynvml.NVMLError_NoPermission:
                kept_away += 1
            except pynvml.NVMLError as error:
                why = f"NVML's GPU {index} does not answer: {error}"
                refused.append("; ".join(filter(None, (why, remedy_of(why)))))
        yield Cards(tuple(whole), tuple(refused), text(ask("nvmlSystemGetDriverVersion") or ""), kept_away)
    finally:
        pynvml.nvmlShutdown()


def visible(uuids: Sequence[str], setting: str | None, slices: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Return the UUIDs of the devices that CUDA_VISIBLE_DEVICES leaves, in its order.

    Args:
        uuids: of every card, in PCI order, which is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID.
        setting: the variable's value; None shows all. An entry is an index or the beginning of a UUID; the first entry
            that names no device ends the list, and a repeated entry empties it, as in the CUDA driver.
        slices: UUIDs of the MIG slices of each card in MIG mode. CUDA shows a process one slice, the first that is left
            (NVIDIA's MIG user guide, "Device enumeration"), and no whole card next to it.
    """
    slices = slices or {}
    parts = [part for of_card in slices.values() for part in of_card]
    chosen = list(uuids) if setting is None else []
    for entry in filter(None, (part.strip() for part in (setting or "").split(","))):
        if re.fullmatch("[0-9]{1,5}", entry) and int(entry) < len(uuids):
            chosen.append(uuids[int(entry)])
            continue
        named = [uuid for uuid in (*uuids, *parts) if entry.startswith(("GPU-", "MIG-")) and uuid.startswith(entry)]
        if len(named) != 1:
            break
        chosen += named
    if len(set(chosen)) < len(chosen):
        return []
    shown = [part for uuid in chosen for part in (slices[uuid][:1] if uuid in slices else [uuid])]
    return [uuid for uuid in shown if uuid in parts][:1] or shown


def trouble(error: Exception, nodes: Path = DEVICE_NODES) -> str:
    """Return why NVML shows no GPU although there seems to be one, from what `opened` raised; "" without a GPU."""
    node = next((path for path in sorted(nodes.glob("nvidia*")) if path.name.removeprefix("nvidia").isdigit()), None)
    try:
        import pynvml

        absent = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        expected = getattr(error, "value", None) in absent
    except ImportError:
        expected = True
    if expected and node is None:
        return ""
    seen = "" if node is None else f" although {node} exists"
    return (
        f"NVML fails{seen}: {str(error).rstrip('.')}; compare with nvidia-smi, restart after an update of the driver, "
        "and give a container the driver's utilities (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
    )


def ask(query: str, *arguments: Any) -> Any:
    """Return NVML's answer; None where the card or driver refuses, or does not know the query."""
    import pynvml

    try:
        return getattr(pynvml, query)(*arguments)
    except (pynvml.NVMLError, AttributeError):
        return None


def lost(gpu: Gpu) -> bool:
    """Return whether a card has fallen off its bus."""
    import pynvml

    try:
        pynvml.nvmlDeviceGetTemperature(gpu.card, pynvml.NVML_TEMPERATURE_GPU)
    except pynvml.NVMLError as error:
        return bool(error.value == pynvml.NVML_ERROR_GPU_IS_LOST)
    return False


def near(gpu: Gpu, cores: int) -> tuple[int, ...]:
    """Return the cores in the NUMA node of a card, of the machine's first `cores`; none where NVML does not say."""
    words = ask("nvmlDeviceGetCpuAffinity", gpu.card, -(-cores // 64))
    return tuple(64 * n + bit for n, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1)


def link_ends(gpu: Gpu) -> list[str]:
    """Return where each NVLink that is up leads: "switch", or the PCI bus id of another card."""
    import pynvml

    ends = []
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        up = ask("nvmlDeviceGetNvLinkState", gpu.card, number)
        if up is None:  # this card has no more
            break
        if up:
            switch = ask("nvmlDeviceGetNvLinkRemoteDeviceType", gpu.card, number) == SWITCH
            remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", gpu.card, number)
            ends.append("switch" if switch else text(getattr(remote, "busId", b"")))
    return ends


def link(a: Gpu, b: Gpu, ends: Mapping[str, Sequence[str]]) -> str:
    """Return how two cards are connected, as `nvidia-smi topo -m` has it; `ends` has the `link_ends` of each, by UUID.

    "NV18" is 18 NVLinks, "PIX" to "SYS" none, and "?" is not known.
    """
    bus = text(getattr(ask("nvmlDeviceGetPciInfo", b.card), "busId", b""))
    links = ends[a.uuid].count(bus) or min(ends[gpu.uuid].count("switch") for gpu in (a, b))
    if links:
        return f"NV{links}"
    return NAMES.get(ask("nvmlDeviceGetTopologyCommonAncestor", a.card, b.card), "?")


def text(value: str | bytes) -> str:
    """Return a text of NVML's; older versions of its package return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _is_ours(handle: Any) -> bool:
    """Return whether this process may open the device file of a card, which CUDA needs and NVML may do without.

    A container has those of its own cards alone, or may not open the others (the kernel's control groups of devices, of
    which `access` asks, too). Where the driver has no such files (WSL), every card is ours.
    """
    minor = ask("nvmlDeviceGetMinorNumber", handle)
    if minor is None or not (DEVICE_NODES / "nvidiactl").exists():
        return True
    return os.access(DEVICE_NODES / f"nvidia{minor}", os.R_OK | os.W_OK)


def _card(handle: Any) -> Gpu:
    import pynvml

    uuid, name = text(pynvml.nvmlDeviceGetUUID(handle)), text(ask("nvmlDeviceGetName", handle) or "unknown GPU")
    mode = ask("nvmlDeviceGetMigMode", handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return Gpu(uuid, name, handle, handle, uuid)
    slices = []
    for index in range(ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        mig = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if mig is not None and (mig_uuid := ask("nvmlDeviceGetUUID", mig)) is not None:
            slices.append(Gpu(text(mig_uuid), f"{name} MIG {_profile(mig)}", mig, handle, uuid))
    return Gpu(uuid, name, handle, handle, uuid, tuple(slices))


def _profile(mig: Any) -> str:
    """Return the profile of a slice as nvidia-smi names it: "3g.40gb", or "1c.3g.40gb" for a part of its compute."""
    has = ask("nvmlDeviceGetAttributes", mig)
    if has is None:
        return "of unknown size"
    gpu, compute = has.gpuInstanceSliceCount, has.computeInstanceSliceCount
    part = f"{compute}c." if compute < gpu else ""
    return f"{part}{gpu}g.{math.ceil(has.memorySizeMB / 1024)}gb"


def compute_mode(card: Any, environment: Mapping[str, str] = os.environ) -> str:
    """Return the compute mode of a card, by NVML's handle; "" where the driver does not say.

    It tells whether several processes can be on the card at once, which every run needs. MPS (Multi-Process Service) is
    one process on the card that works for all others, so that they can share a card in exclusive mode, too.
    """
    named = COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode", card), "")
    pipes = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or PIPES)
    return BY_MPS if named == COMPUTE_MODES[3] and (pipes / "control").exists() else named


def refusal(index: int, mode: str) -> str:
    """Return why a GPU in this compute mode takes no second process, and what to do; "" where it takes several."""
    if mode in ("", COMPUTE_MODES[0], BY_MPS):
        return ""
    or_mps = ", or start MPS (nvidia-cuda-mps-control -d)" if mode == COMPUTE_MODES[3] else ""
    return (
        f"GPU {index} is in compute mode {mode}, and a run has several processes on each GPU; allow them (as root, "
        f"nvidia-smi -c DEFAULT){or_mps}"
    )
