"""What NVML tells of the GPUs of a run, read and never changed. Where there is no NVML, there is nothing to tell.

Every query stands alone: a card or driver that refuses one (ECC on consumer cards, processes under WSL) answers the
others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from suite.room.conditions import GpuConditions
from suite.room.devices import Devices, visible_handles

# NVML's nvmlClocksEventReason bits. Not among them: an idle card, and clocks that somebody has set.
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
        """Who holds memory on it. In a container of its own PID namespace these are the host's numbers."""
        return frozenset(pid for pid, _ in self.processes)


class Gpus:
    """The GPUs a run uses, open for reading. Use it as a context manager; none on a CPU run."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handles = {}
        self._stack.close()

    def read(self) -> tuple[GpuReading, ...]:
        """All of them, now."""
        return tuple(_read(index, handle) for index, handle in self._handles.items())

    def busy_percent(self) -> dict[int, int]:
        """By index, how much of NVML's last sampling period (up to a second) a kernel was running."""
        rates = {index: _utilization(handle) for index, handle in self._handles.items()}
        return {index: int(rate.gpu) for index, rate in rates.items() if rate is not None}


def between(before: GpuReading, after: GpuReading, known: frozenset[int]) -> GpuConditions:
    """What a GPU went through from one reading to the next.

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
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    violation = _ask(pynvml.nvmlDeviceGetViolationStatus, handle, pynvml.NVML_PERF_POLICY_THERMAL)
    kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    errors = [_ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC) for kind in kinds]
    processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return GpuReading(
        index=index,
        mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        celsius=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        reasons=reasons,
        thermal_ns=None if violation is None else int(violation.violationTime),
        ecc_errors=None if None in errors else sum(errors),
        processes=tuple((int(process.pid), process.usedGpuMemory) for process in processes),
    )


def _utilization(handle: Any) -> Any:
    import pynvml

    return _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)


def _ask(query: Callable[..., Any], *arguments: Any) -> Any:
    import pynvml

    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
