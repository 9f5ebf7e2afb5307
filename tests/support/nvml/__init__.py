"""Scenes of GPUs for machines without one: a stand-in for NVIDIA's library, answering NVIDIA's real Python package.

A scene is a text file that `fake.c` describes. `Scene.load` puts the library under pynvml inside a test, `Scene.export`
gives it to the processes that the test starts.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pynvml
import pytest

LIBRARY = "libnvidia-ml.so.1"
# What every card of these scenes answers unless a scene says otherwise. They are the forms of real answers, no figures.
HEALTHY = {
    "name": "NVIDIA H100 80GB HBM3",
    "mhz": 1980,
    "max_mhz": 1980,
    "celsius": 40,
    "reasons": 1,
    "thermal_ns": 0,
    "power_ns": 0,
    "millijoules": 1000,
    "corrected": 0,
    "uncorrected": 0,
    "remapped": 0,
    "busy": 0,
    "power_limit": 700_000,
    "compute_mode": 0,
    "persistence": 1,
    "ecc": 1,
    "lanes": 16,
    "max_lanes": 16,
    "generation": 5,
    "capability": 90,
    "bytes": 80 << 30,
    "cores": 1,
    "ancestor": 50,
    "p2p": 0,
    "processes": "",
}


def build(folder: Path) -> Path:
    """Return the folder of the library, compiled; skips where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the stand-in for NVML needs a C compiler, and there is no gcc here")
    source = Path(__file__).with_name("fake.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", folder / LIBRARY, source], check=True)
    return folder


class Scene:
    """The GPUs of one test.

    Args:
        library: the folder of the compiled library.
        file: of the answers.
        gpus: how many cards there are.
    """

    def __init__(self, library: Path, file: Path, gpus: int = 2) -> None:
        self._library, self._file = library, file
        self._lines: list[str] = []
        self.say("library", gpus=gpus, driver="580.65.06")
        self.say("*", **HEALTHY)
        for index in range(gpus):
            self.say(index, uuid=f"GPU-{index:08x}-0000-0000-0000-000000000000", bus=f"00000000:{index + 1:02X}:00.0")

    def say(self, who: object, **answers: object) -> Scene:
        """Answer these queries of one device, "1" or a slice "1.0", or of all, "*"; later answers replace earlier."""
        self._lines += [f"{who} {query} {answer}" for query, answer in answers.items()]
        temporary = self._file.with_suffix(".new")
        temporary.write_text("\n".join(self._lines) + "\n")
        temporary.replace(self._file)
        return self

    def mig(self, card: int, *slices: tuple[int, int, int]) -> Scene:
        """Put a card in MIG mode; a slice is (GPU slices, compute slices, MiB)."""
        self.say(card, mig=len(slices))
        for index, (gpu, compute, megabytes) in enumerate(slices):
            uuid = f"MIG-{card:04x}{index:04x}-0000-0000-0000-000000000000"
            self.say(f"{card}.{index}", uuid=uuid, gpu_slices=gpu, compute_slices=compute, megabytes=megabytes)
        return self

    def export(self, monkeypatch: pytest.MonkeyPatch) -> Scene:
        """Let processes that are started from here on have these GPUs, until the test ends."""
        monkeypatch.setenv("FAKE_NVML_SCENE", str(self._file))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(self._library))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return self

    def load(self, monkeypatch: pytest.MonkeyPatch) -> Scene:
        """Put the library under pynvml in this process, too."""
        self.export(monkeypatch)
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(self._library / LIBRARY)))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return self
