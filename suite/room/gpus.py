"""Read the GPUs of a run through NVML; nothing on them is changed.

A card or driver may refuse a query (ECC on consumer cards, processes under WSL) and still answer the others.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from suite.room.conditions import GpuConditions
from suite.room.devices import Devices, visible_handles

# NVML's nvmlClocksEventReason bits, without an idle card and clocks that a user has set.
REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
THERMAL = 0x20


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment; None is what was refused.

    Attributes:
        index: as in the device's name.
        mhz, celsius: of the multiprocessors; of the chip.
        reasons: NVML's bits for what holds the clocks down.
        thermal_ns: time spent throttled by heat since the driver was loaded. Reasons are seen only at the moment they
            are read, and between windows a card is idle: this counter keeps what came and went.
        ecc_errors: since the driver was loaded, corrected or not.
        processes: pid to bytes of GPU memory, None where these are hidden.
    """

    index: int
    mhz: int | None = None
    celsius: int | None = None
    reasons: int | None = None
    thermal_ns: int | None = None
    ecc_errors: int | None = None
    processes: tuple[tuple[int, int | None], ...] = ()

    @property
    def pids(self) -> frozenset[int]:
        """The processes that hold memory on it; in a container with its own PID namespace, the host's numbers."""
        return frozenset(pid for pid, _ in self.processes)


class Gpus:
    """A context manager that reads the GPUs of a run; none on a CPU run."""

    def __init__(self, devices: Devices) -> None:
        self._indices = sorted({int(name.removeprefix("cuda:")) for name in devices.names if name != "cpu"})
        self._handles: dict[int, Any] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Gpus:
        if self._indices:
            with contextlib.suppress(Exception):  # no library, no driver: the workers say so in their own words
                shown = self._stack.enter_context(visible_handles())
                self._handles = {index: shown[index] for index in self._indices if index < len(shown)}
        return self

    def __exit__(self, *_: object) -> None:
        self._handles = {}
        self._stack.close()

    def read(self) -> tuple[GpuReading, ...]:
        """Return a reading of each."""
        return tuple(_read(index, handle) for index, handle in self._handles.items())

    def busy_percent(self) -> dict[int, int]:
        """Return by index how much of NVML's last sampling period (up to a second) a kernel was running."""
        rates = {index: _ask("nvmlDeviceGetUtilizationRates", handle) for index, handle in self._handles.items()}
        return {index: int(rate.gpu) for index, rate in rates.items() if rate is not None}


def between(before: GpuReading, after: GpuReading, known: frozenset[int]) -> GpuConditions:
    """Return the conditions of a GPU from one reading to the next.

    Args:
        known: processes that are ours, or were there before the run.
    """
    reasons = (before.reasons or 0) | (after.reasons or 0)
    if (_growth(before.thermal_ns, after.thermal_ns) or 0) > 0:
        reasons |= THERMAL
    return GpuConditions(
        index=after.index,
        mhz=after.mhz,
        celsius=after.celsius,
        throttled=tuple(name for bit, name in REASONS.items() if reasons & bit),
        ecc_errors=_growth(before.ecc_errors, after.ecc_errors),
        newcomers=tuple(sorted(after.pids - known)),
    )


def _read(index: int, handle: Any) -> GpuReading:
    import pynvml

    # The older name: every driver and every nvidia-ml-py that we accept has it.
    reasons = _ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    violation = _ask("nvmlDeviceGetViolationStatus", handle, pynvml.NVML_PERF_POLICY_THERMAL)
    kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    errors = [_ask("nvmlDeviceGetTotalEccErrors", handle, kind, pynvml.NVML_VOLATILE_ECC) for kind in kinds]
    processes = _ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
    return GpuReading(
        index=index,
        mhz=_ask("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM),
        celsius=_ask("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU),
        reasons=reasons,
        thermal_ns=None if violation is None else int(violation.violationTime),
        ecc_errors=None if None in errors else sum(errors),
        processes=tuple((int(process.pid), process.usedGpuMemory) for process in processes),
    )


def _ask(query: str, *arguments: Any) -> Any:
    """Return NVML's answer; None where the card or driver refuses."""
    import pynvml

    try:
        return getattr(pynvml, query)(*arguments)
    except pynvml.NVMLError:
        return None


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
