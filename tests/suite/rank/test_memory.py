"""The peak memory of a process: a real one on the CPU, and scripted allocators of GPUs."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from suite.processes.answers import PeakMemory
from suite.rank import counting
from suite.rank.memory import MAXRSS_UNIT, Peak

CPU = torch.device("cpu")
GPUS = [torch.device("cuda", index) for index in range(2)]
LARGE = 100 << 20  # bytes; glibc gives an allocation of this size back to the kernel when it is freed


class Allocators:
    """What torch's allocators of two GPUs say: bytes now, their peak, and the peak of what they keep."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.peak = dict.fromkeys(GPUS, 1000), dict.fromkeys(GPUS, 9000)
        patch.setattr(torch.accelerator, "memory_allocated", self.now.__getitem__)
        patch.setattr(torch.accelerator, "max_memory_allocated", self.peak.__getitem__)
        patch.setattr(torch.accelerator, "max_memory_reserved", lambda gpu: 2 * self.peak[gpu])
        patch.setattr(torch.accelerator, "memory_reserved", lambda gpu: 1200)
        patch.setattr(torch.cuda, "mem_get_info", lambda gpu: (10**6 + gpu.index, 10**7))
        patch.setattr(torch.accelerator, "reset_peak_memory_stats", lambda gpu: self.hold(gpu, 0))
        patch.setattr(torch.accelerator, "synchronize", lambda gpu: None)

    def hold(self, gpu: torch.device, more: int) -> None:
        """Let a GPU hold this many bytes more for a moment."""
        self.peak[gpu] = self.now[gpu] + more


@pytest.fixture
def allocators(monkeypatch: pytest.MonkeyPatch) -> Allocators:
    return Allocators(monkeypatch)


def test_the_peak_of_a_process_is_what_it_held_since_the_last_reset() -> None:
    before = Peak([CPU])
    torch.ones(LARGE, dtype=torch.uint8)
    held, after = before.read(), Peak([CPU]).read()
    assert held.resident_bytes is not None
    assert after.resident_bytes is not None
    assert held.resident_bytes - after.resident_bytes > 0.9 * LARGE
    assert not held.since_start


@pytest.mark.parametrize("folder", ["absent", "."])
def test_a_kernel_that_resets_or_shows_no_peak_leaves_that_since_the_process_began(tmp_path: Path, folder: str) -> None:
    """Where /proc is not mounted, and where it lacks the line (gVisor)."""
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t  13404 kB\n")
    held = Peak([CPU], tmp_path / folder).read()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT
    assert held.since_start
    assert held.resident_bytes == pytest.approx(own, rel=0.01)


def test_a_process_with_several_gpus_tells_the_peak_of_each(allocators: Allocators) -> None:
    peak = Peak([*GPUS, GPUS[0]])
    allocators.hold(GPUS[1], 500)
    assert peak.read() == PeakMemory(
        allocated_bytes=(1000, 1500),
        reserved_bytes=(2000, 3000),
        returned_bytes=(800, 1800),
        free_bytes=(1_000_000, 1_000_001),
    )


@pytest.mark.parametrize("error", [AttributeError("module 'torch.openreg' has none"), RuntimeError("not supported")])
def test_what_a_card_has_free_is_unknown_where_it_is_not_told(
    allocators: Allocators, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuses(gpu: torch.device) -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuses)
    assert Peak(GPUS).read().free_bytes == (0, 0)


def test_the_counter_of_memory_is_what_the_peak_of_a_step_is_above_what_was_there(allocators: Allocators) -> None:
    def step() -> None:
        for gpu in GPUS:
            allocators.hold(gpu, 500)

    with pytest.warns(UserWarning, match="CUDA"):  # which the profiler misses here
        counts = counting.one_step(step, GPUS)
    assert counts["peak memory", "", "bytes"] == 1000
