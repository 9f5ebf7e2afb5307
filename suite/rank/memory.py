"""The most memory that this process holds during some steps (worker's side); docs/metrics.md defines the figures.

On accelerators torch's allocator says it. On a CPU the kernel does: the resident size of the process, which includes
the pages of libraries and of the mapped dataset, and what the allocator keeps between steps. Not covered: memory of an
accelerator that torch's allocator does not hand out, such as CUDA's context and NCCL's buffers.
"""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from suite.processes.answers import PeakMemory
from suite.room import accelerator

OWN = Path("/proc/self")
RESET = "5"  # written to clear_refs it makes VmHWM the present size (proc(5))
PEAK = re.compile(r"^VmHWM:\s*(\d+) kB$", re.MULTILINE)
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes; getrusage(2)


class Peak:
    """The peak of this process from the moment this object is made."""

    def __init__(self, devices: Iterable[torch.device], own: Path = OWN) -> None:
        """Let the peak begin with what is held now.

        Args:
            devices: of this process.
            own: the kernel's folder on this process.
        """
        every = list(dict.fromkeys(devices))
        self._own = own
        self._accelerators = [device for device in every if device.type != "cpu"]
        self._on_cpu = len(self._accelerators) < len(every)
        self._before = [torch.accelerator.memory_allocated(device) for device in self._accelerators]
        for device in self._accelerators:
            torch.accelerator.reset_peak_memory_stats(device)
        self._reset = self._on_cpu and _reset(own)

    def read(self) -> PeakMemory:
        """Return the peak until now; accelerators in the order of the devices."""
        resident_bytes, since_start = None, False
        if self._on_cpu:
            resident_bytes = _peak_bytes(self._own) if self._reset else None
            if since_start := resident_bytes is None:
                resident_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT
        reserved = [torch.accelerator.max_memory_reserved(device) for device in self._accelerators]
        kept = map(torch.accelerator.memory_reserved, self._accelerators)
        return PeakMemory(
            allocated_bytes=self._allocated(),
            reserved_bytes=tuple(reserved),
            resident_bytes=resident_bytes,
            since_start=since_start,
            returned_bytes=tuple(most - now for most, now in zip(reserved, kept, strict=True)),
            free_bytes=tuple(map(accelerator.free_bytes, self._accelerators)),
        )

    def growth_bytes(self) -> int:
        """Return by how much the allocated bytes grew at their peak, over all accelerators."""
        return sum(self._allocated()) - sum(self._before)

    def _allocated(self) -> tuple[int, ...]:
        return tuple(torch.accelerator.max_memory_allocated(device) for device in self._accelerators)


def _reset(own: Path) -> bool:
    """Return whether the kernel lets the peak of the resident size be reset."""
    try:
        (own / "clear_refs").write_text(RESET, encoding="ascii")
    except OSError:
        return False
    return True


def _peak_bytes(own: Path) -> int | None:
    """Return the peak of the resident size; None where the kernel does not say."""
    try:
        shown: Sequence[str] = PEAK.findall((own / "status").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return int(shown[0]) * 1024 if shown else None
