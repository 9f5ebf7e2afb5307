"""What is known of each card, and what of it is unusual. It is said first on the screen, and changes no outcome."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from suite.room import nvml
from suite.room.conditions import PROTECTIVE, GpuConditions
from suite.room.errors import LOST, UNCORRECTED
from suite.room.nvml import Gpu, ask
from suite.room.part import Part

SLOWER = 0.05  # a clock or a power limit that is this share below that of its twins is named
READ, REACHED = 0, 0  # of NVML's P2P capabilities and states; pynvml's own constant of the first is a tuple


class Card(Part):
    """One GPU as CUDA shows it; None is what its driver does not report."""

    index: int  # as in the device's name, cuda:0 is 0
    name: str  # with the profile of a MIG slice
    id: str  # a digest of its UUID
    capability: str = ""  # the compute capability, such as "9.0"
    memory_bytes: int | None = None  # of the GPU, or of the slice
    nvlinks: int = 0  # how many are up
    pcie_lanes: int | None = None  # in use
    pcie_max_lanes: int | None = None  # that card and slot allow
    pcie_generation: int | None = None  # that they allow
    cores: int = 0  # in its NUMA node
    max_mhz: int | None = None  # of the multiprocessors
    power_limit_w: int | None = None  # at which clocks are lowered
    persistence: bool | None = None  # whether the mode is on, as the next one
    ecc: bool | None = None
    compute_mode: str = ""  # who may use it, as `suite.room.nvml` names it
    uncorrected: int | None = None  # memory errors since the driver was loaded that were not corrected
    remapped: int | None = None  # rows of memory replaced after uncorrectable errors, ever
    remap_pending: bool = False  # whether a row waits for the next reset
    remap_failed: bool = False  # whether none could be replaced
    no_peers: tuple[int, ...] = ()  # the GPUs whose memory it cannot read directly

    @property
    def words(self) -> str:
        """Its facts in a line, without its name."""
        size = "" if self.memory_bytes is None else f"{self.memory_bytes / 2**30:.0f} GiB"
        lanes = "" if self.pcie_lanes is None else f"PCIe x{self.pcie_lanes}"
        generation = "" if self.pcie_generation is None else f" generation {self.pcie_generation}"
        parts = (
            size,
            self.capability and f"capability {self.capability}",
            f"{self.nvlinks} NVLinks" if self.nvlinks else "",
            lanes and lanes + generation,
            f"{self.cores} cores near" if self.cores else "",
            "" if self.power_limit_w is None else f"at most {self.power_limit_w} W",
            "" if self.max_mhz is None else f"at most {self.max_mhz} MHz",
            self.compute_mode and f"compute mode {self.compute_mode}",
            "" if self.persistence is None else f"persistence {'on' if self.persistence else 'off'}",
            "" if self.ecc is None else f"ECC {'on' if self.ecc else 'off'}",
        )
        return ", ".join(filter(None, parts))


def cards(gpus: Sequence[Gpu]) -> tuple[Card, ...]:
    """Return what NVML says of these GPUs, inside `suite.room.nvml.opened`."""
    return tuple(_card(index, gpu, _no_peers(gpu, gpus)) for index, gpu in enumerate(gpus))


def unusual(cards: Sequence[Card], blocks: Sequence[Sequence[GpuConditions]] = ()) -> list[str]:
    """Return a sentence for everything on the cards that may make a run slow or wrong, also during its timed blocks."""
    return [
        *(sentence for card in cards for sentence in _one(card)),
        *_below_twins(cards, {card.index: card.power_limit_w for card in cards}, "power limit", "W"),
        *_in_blocks(cards, blocks),
    ]


def _no_peers(gpu: Gpu, gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Return the places of the GPUs whose memory this one cannot read; what the driver does not say is not named."""
    states = {
        index: ask("nvmlDeviceGetP2PStatus", gpu.card, other.card, READ)
        for index, other in enumerate(gpus)
        if other.card_uuid != gpu.card_uuid
    }
    return tuple(index for index, state in states.items() if state not in (None, REACHED))


def _card(index: int, gpu: Gpu, no_peers: tuple[int, ...]) -> Card:
    import pynvml

    card = gpu.card
    capability, memory = ask("nvmlDeviceGetCudaComputeCapability", card), ask("nvmlDeviceGetMemoryInfo", gpu.handle)
    limit_mw, ecc = ask("nvmlDeviceGetPowerManagementLimit", card), ask("nvmlDeviceGetEccMode", card)
    persistence = ask("nvmlDeviceGetPersistenceMode", card)
    _, remapped, pending, failed = ask("nvmlDeviceGetRemappedRows", card) or (None, None, 0, 0)
    uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return Card(
        index=index,
        name=gpu.name[:120],
        id=hashlib.sha256(gpu.uuid.encode()).hexdigest()[:12],
        capability="" if capability is None else ".".join(map(str, capability)),
        memory_bytes=None if memory is None else int(memory.total),
        nvlinks=len(nvml.link_ends(gpu)),
        pcie_lanes=ask("nvmlDeviceGetCurrPcieLinkWidth", card),
        pcie_max_lanes=ask("nvmlDeviceGetMaxPcieLinkWidth", card),
        pcie_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration", card),
        cores=len(nvml.near(gpu, os.cpu_count() or 1)),
        max_mhz=ask("nvmlDeviceGetMaxClockInfo", card, pynvml.NVML_CLOCK_SM),
        power_limit_w=None if limit_mw is None else round(limit_mw / 1000),
        persistence=None if persistence is None else bool(persistence),
        ecc=None if ecc is None else bool(ecc[0]),
        compute_mode=nvml.compute_mode(card),
        uncorrected=ask("nvmlDeviceGetTotalEccErrors", card, uncorrected, pynvml.NVML_VOLATILE_ECC),
        remapped=remapped,
        remap_pending=bool(pending),
        remap_failed=bool(failed),
        no_peers=no_peers,
    )


def _one(card: Card) -> Iterator[str]:
    who = f"GPU {card.index}"
    if refused := nvml.refusal(card.index, card.compute_mode):
        yield refused
    if card.compute_mode == nvml.BY_MPS:
        yield f"{who} is shared by MPS: an error of one process on it can end the others"
    if card.uncorrected:
        had = f"{who} has had {card.uncorrected} uncorrected memory error(s) since the driver was loaded"
        yield f"{had}; {UNCORRECTED}"
    if card.remap_failed:
        yield f"{who} could not replace a bad row of its memory: have it exchanged"
    if card.remap_pending:
        yield f"{who} replaces a bad row of its memory at its next reset"
    elif card.remapped:
        yield f"{who} has replaced {card.remapped} bad row(s) of its memory after uncorrectable errors"
    if card.pcie_lanes and card.pcie_max_lanes and card.pcie_lanes < card.pcie_max_lanes:
        yield f"{who} uses {card.pcie_lanes} of its {card.pcie_max_lanes} PCIe lanes"
    if card.no_peers:
        others = ", ".join(map(str, card.no_peers))
        yield f"{who} cannot read the memory of GPU {others} directly (P2P): exchanges go through the host"


def _in_blocks(cards: Sequence[Card], blocks: Sequence[Sequence[GpuConditions]]) -> Iterator[str]:
    by_index: dict[int, list[GpuConditions]] = {}
    for gpu in (gpu for block in blocks for gpu in block):
        by_index.setdefault(gpu.index, []).append(gpu)
    for index, seen in sorted(by_index.items()):
        who, of = f"GPU {index}", f"of {len(seen)} blocks"
        if gone := sum(gpu.lost for gpu in seen):
            yield f"{who} had fallen off its bus in {gone} {of}; {LOST}"
        if xids := sorted({xid for gpu in seen for xid in gpu.xids}):
            yield f"{who} had Xid errors {', '.join(map(str, xids))} during the run: NVIDIA's list says what they mean"
        counts = Counter(reason for gpu in seen for reason in PROTECTIVE.intersection(gpu.throttled))
        for reason, count in sorted(counts.items()):
            yield f"{who} lowered its clocks to protect itself ({reason}) in {count} {of}"
        if errors := sum(gpu.uncorrected or 0 for gpu in seen):
            yield f"{who} had {errors} uncorrected memory error(s) during the run; {UNCORRECTED}"
    clocks = {
        index: median(known)
        for index, seen in by_index.items()
        if (known := [gpu.mhz for gpu in seen if gpu.mhz is not None])
    }
    yield from _below_twins(cards, clocks, "clock", "MHz")


def _below_twins(cards: Sequence[Card], values: Mapping[int, float | None], what: str, unit: str) -> Iterator[str]:
    """Yield a sentence for each card whose value is below the median of the cards of its name."""
    for card in cards:
        twins = [values.get(twin.index) for twin in cards if twin.name == card.name and twin is not card]
        others = [value for value in twins if value is not None]
        own = values.get(card.index)
        if own is not None and others and own < (1 - SLOWER) * median(others):
            yield f"GPU {card.index}'s {what} is {own:.0f} {unit}, and its twins' is {median(others):.0f} {unit}"
