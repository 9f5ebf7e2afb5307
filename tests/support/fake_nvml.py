"""A stand-in for NVML's library, for machines without a GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class FakeNvml(ModuleType):
    """Two cards; `values` has the answers of queries, or the exceptions that they raise."""

    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
    NVML_PERF_POLICY_THERMAL, NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 1, 0

    class NVMLError(Exception):
        """The library's exception."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.open = 0
        self.processes: dict[int, list[Any]] = {0: [], 1: []}
        self.values: dict[str, Any] = {
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
            "nvmlDeviceGetViolationStatus": SimpleNamespace(violationTime=5),
            "nvmlDeviceGetTotalEccErrors": 2,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97),
        }

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return self.processes[handle]

    def put(self, handle: int, *pids: int) -> None:
        self.processes[handle] = [SimpleNamespace(pid=pid, usedGpuMemory=3_000_000_000) for pid in pids]

    def __getattr__(self, name: str) -> Any:
        def query(*_: Any) -> Any:
            if isinstance(self.values[name], Exception):
                raise self.values[name]
            return self.values[name]

        return query

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        """Replace the library, with both cards visible to CUDA."""
        fake = cls()
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return fake
