"""GPUs of AMD, from files in the form of the kernel's; no GPU of AMD has been read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from suite.rank import commands
from suite.room import accelerator, devices, rocm
from suite.room.devices import Build
from suite.room.quiet import available_cores
from suite.run import machine

ROCM = Build("2.15.0+rocm7.1", "rocm")
CPU_NODE = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\n"
MI300 = "simd_count 1216\ngfx_target_version 90402\nunique_id {unique}\nlocation_id {location}\ndomain 0\n"
CORE = available_cores()[0]

Kernel = Callable[..., Path]


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """Write nodes as the kernel does: a CPU, and then so many GPUs; one of `hidden` cannot be read from a container."""

    def write(gpus: int = 2, hidden: int | None = None) -> Path:
        for number in range(gpus + 1):
            node = tmp_path / rocm.NODES / str(number)
            node.mkdir(parents=True)
            mine = MI300.format(unique=0xA0 + number, location=number << 8)
            (node / "properties").write_text("" if number == hidden else mine if number else CPU_NODE)
            card = tmp_path / f"bus/pci/devices/0000:{number:02x}:00.0"
            card.mkdir(parents=True)
            (card / "local_cpulist").write_text(f"{CORE},4000-4003\n")
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({}, [1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [3]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000a2"}, [2]),
    ],
)
def test_gpus_are_counted_as_hip_shows_them(kernel: Kernel, environment: dict[str, str], shown: list[int]) -> None:
    gpus = rocm.shown(environment, kernel(3))
    assert [gpu.uuid for gpu in gpus] == [f"GPU-{0xA0 + number:016x}" for number in shown]
    assert {gpu.name for gpu in gpus} <= {"AMD gfx942"}


def test_a_gpu_that_a_container_may_not_use_is_not_counted(kernel: Kernel) -> None:
    assert [gpu.handle for gpu in rocm.shown({}, kernel(3, hidden=2))] == ["0000:01:00.0", "0000:03:00.0"]


def test_a_torch_for_rocm_takes_them_and_their_ranks_are_pinned_near(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    here = devices.survey(ROCM, kernel())
    assert (len(here.gpus), here.near, here.problem) == (2, ((CORE,), (CORE,)), "")
    assert devices.survey(ROCM, Path("/nowhere")).gpus == ()


def test_the_record_has_their_names_and_says_what_is_not_read(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    used = devices.Devices("cuda", ("cuda:0", "cuda:1"), ())
    described = machine.describe(used, ROCM, kernel(3))
    assert described.gpus == ("AMD gfx942", "AMD gfx942")
    assert described.key.startswith("cuda-2xamd-gfx942-")
    assert (described.gpu_topology, described.problem) == ("?", rocm.UNREAD)
    assert machine.variables(used)["HIP_VISIBLE_DEVICES"] == "0,1"


def test_a_worker_names_the_architecture_and_amds_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted torch for ROCm, on which the questions are those to CUDA."""
    card = SimpleNamespace(name="AMD Instinct", uuid="?", major=9, minor=4, gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["gfx90a", "gfx942"])
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 7))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 3_005_001)
    assert [gpu.architecture for gpu in commands.gpus(commands.State(0)).gpus] == ["gfx942"]
    assert accelerator.versions() == {"rocm": "7.1", "rccl": "2.27.7", "miopen": "3005001"}
