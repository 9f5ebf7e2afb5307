"""Read the GPUs of a run while it measures; nothing on them is changed.

A MIG slice has its own processes; clocks, heat, power and errors are those of its card.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from suite.room import nvml
from suite.room.conditions import GpuConditions
from suite.room.devices import Devices
from suite.room.nvml import Gpu, ask

# NVML's nvmlClocksEventReason bits, without an idle card and clocks that a user has set.
REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
THERMAL, POWER = 0x20, 0x04
_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"  # every driver and every nvidia-ml-py has this, the older name
MOST_EVENTS = 64  # of one reading


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment, with the fields of `GpuConditions`; None is what was refused.

    Energy and ECC errors count from when the driver was loaded, Xid errors from when the run began.
    """

    index: int
    mhz: int | None = None  # the median of those that `Gpus.worked` saw since the reading before
    celsius: int | None = None
    reasons: int | None = None  # NVML's bits for what holds the clocks down, at this moment or at one of those
    thermal_ns: int | None = None  # throttled by heat since the driver was loaded, also what came and went
    power_ns: int | None = None  # by the power cap
    millijoules: int | None = None
    ecc_errors: int | None = None
    uncorrected: int | None = None
    processes: tuple[tuple[int, int | None], ...] = ()  # pid and bytes of GPU memory, None where these are hidden
    lost: bool = False
    xids: tuple[int, ...] = ()

    @property
    def pids(self) -> frozenset[int]:
        """The processes that hold memory on it; in a container with its own PID namespace, the host's numbers."""
        return frozenset(pid for pid, _ in self.processes)


@dataclass
class _AtWork:
    """What a GPU's clock was at moments when it had just worked, and NVML's bits for what held it down."""

    mhz: list[int] = field(default_factory=list)
    reasons: int = 0

    def look(self, card: Any) -> None:
        """Add what they are now."""
        import pynvml

        mhz = ask("nvmlDeviceGetClockInfo", card, pynvml.NVML_CLOCK_SM)
        self.mhz += [] if mhz is None else [mhz]
        self.reasons |= ask(_REASONS, card) or 0


class Gpus:
    """A context manager that reads the GPUs of a run; none on a CPU run."""

    def __init__(self, devices: Devices) -> None:
        self._indices = _indices(devices.names)
        self._gpus: dict[int, Gpu] = {}
        self._at_work: dict[int, _AtWork] = {}
        self._xids: dict[int, list[int]] = {}
        self._events: Any = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Gpus:
        if self._indices:
            with contextlib.suppress(Exception):  # no library, no driver: the workers say so in their own words
                shown = self._stack.enter_context(nvml.opened()).shown(os.environ.get("CUDA_VISIBLE_DEVICES"))
                self._gpus = {index: shown[index] for index in self._indices if index < len(shown)}
                self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._gpus = {}
        self._stack.close()

    def worked(self, names: Iterable[str]) -> None:
        """Read the clocks of these devices right after their window, for the next reading.

        An idle card lowers its clock, which then says nothing about the card.
        """
        for index in _indices(names):
            if index in self._gpus:
                self._at_work.setdefault(index, _AtWork()).look(self._gpus[index].card)

    def read(self) -> tuple[GpuReading, ...]:
        """Return a reading of each."""
        for _ in range(MOST_EVENTS):
            event = None if self._events is None else ask("nvmlEventSetWait", self._events, 0)
            if event is None:
                break
            for index, gpu in self._gpus.items():
                if _address(gpu.card) == _address(event.device):
                    self._xids.setdefault(index, []).append(int(event.eventData))
        at_work, self._at_work = self._at_work, {}
        return tuple(
            _read(index, gpu, tuple(self._xids.get(index, ())), at_work.get(index, _AtWork()))
            for index, gpu in self._gpus.items()
        )

    def busy_percent(self) -> dict[int, int]:
        """Return by index how much of NVML's last sampling period (up to a second) a kernel was running."""
        rates = {index: ask("nvmlDeviceGetUtilizationRates", gpu.handle) for index, gpu in self._gpus.items()}
        return {index: int(rate.gpu) for index, rate in rates.items() if rate is not None}

    def _listen(self) -> None:
        """Let the driver keep Xid errors for us; a card or driver may refuse."""
        import pynvml

        self._events = ask("nvmlEventSetCreate")
        if self._events is not None:
            self._stack.callback(ask, "nvmlEventSetFree", self._events)
            for gpu in self._gpus.values():
                ask("nvmlDeviceRegisterEvents", gpu.card, pynvml.nvmlEventTypeXidCriticalError, self._events)


def between(before: GpuReading, after: GpuReading, known: frozenset[int], elapsed_s: float = 0.0) -> GpuConditions:
    """Return the conditions of a GPU from one reading to the next, where processes are `known` or newcomers."""
    spent_ns = {THERMAL: _growth(before.thermal_ns, after.thermal_ns), POWER: _growth(before.power_ns, after.power_ns)}
    reasons = (before.reasons or 0) | (after.reasons or 0) | sum(bit for bit, ns in spent_ns.items() if (ns or 0) > 0)
    used_mj = _growth(before.millijoules, after.millijoules)
    return GpuConditions(
        index=after.index,
        mhz=after.mhz,
        celsius=after.celsius,
        watts=None if used_mj is None or elapsed_s <= 0 else round(used_mj / 1e3 / elapsed_s, 1),
        throttled=tuple(name for bit, name in REASONS.items() if reasons & bit),
        ecc_errors=_growth(before.ecc_errors, after.ecc_errors),
        uncorrected=_growth(before.uncorrected, after.uncorrected),
        newcomers=tuple(sorted(after.pids - known)),
        lost=after.lost,
        xids=after.xids[len(before.xids) :],
    )


def _indices(names: Iterable[str]) -> list[int]:
    return sorted({int(name.rpartition(":")[2]) for name in names if name != "cpu"})


def _read(index: int, gpu: Gpu, xids: tuple[int, ...], at_work: _AtWork) -> GpuReading:
    import pynvml

    card = gpu.card
    spent = [
        ask("nvmlDeviceGetViolationStatus", card, policy)
        for policy in (pynvml.NVML_PERF_POLICY_THERMAL, pynvml.NVML_PERF_POLICY_POWER)
    ]
    thermal_ns, power_ns = (None if each is None else int(each.violationTime) for each in spent)
    kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    errors = [ask("nvmlDeviceGetTotalEccErrors", card, kind, pynvml.NVML_VOLATILE_ECC) for kind in kinds]
    processes = ask("nvmlDeviceGetComputeRunningProcesses", gpu.handle) or []
    celsius = ask("nvmlDeviceGetTemperature", card, pynvml.NVML_TEMPERATURE_GPU)
    reasons = ask(_REASONS, card)
    return GpuReading(
        index=index,
        mhz=round(median(at_work.mhz)) if at_work.mhz else None,
        celsius=celsius,
        reasons=None if reasons is None else reasons | at_work.reasons,
        thermal_ns=thermal_ns,
        power_ns=power_ns,
        millijoules=ask("nvmlDeviceGetTotalEnergyConsumption", card),
        ecc_errors=None if None in errors else sum(errors),
        uncorrected=errors[1],
        processes=tuple((int(process.pid), process.usedGpuMemory) for process in processes),
        lost=celsius is None and nvml.lost(gpu),
        xids=xids,
    )


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
