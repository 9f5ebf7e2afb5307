"""Reading `--scaling-devices`, and counting GPUs as CUDA or ROCm would show them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from suite.rank import commands
from suite.room import accelerator, devices, errors, limits, nvml
from suite.room.quiet import available_cores
from suite.run import machine
from tests.support.containers import Files
from tests.support.nvml import Scene

UUIDS = ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-bbcc-3"]


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (None, UUIDS),
        ("", []),
        ("1,0", ["GPU-bbbb-2", "GPU-aaaa-1"]),
        ("0,7,1", ["GPU-aaaa-1"]),
        ("-1", []),
        ("GPU-bbbb", ["GPU-bbbb-2"]),
        ("GPU-bb", []),
        ("0,0", []),
        (" 2 , 1 ", ["GPU-bbcc-3", "GPU-bbbb-2"]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(setting: str | None, shown: list[str]) -> None:
    assert nvml.visible(UUIDS, setting) == shown


def test_cpu_devices_get_a_core_each() -> None:
    found = devices.parse("cpu")
    assert (found.kind, found.cores) == ("cpu", tuple(available_cores()))
    assert not found.oversubscribed(len(found.names))


def test_more_cpu_workers_than_cores_are_oversubscribed() -> None:
    cores = len(available_cores())
    found = devices.parse(f"cpu:{cores + 1}")
    assert not found.oversubscribed(cores)
    assert found.oversubscribed(cores + 1)
    assert "(oversubscribed)" in str(found)
    assert found.distinct == cores


@pytest.mark.parametrize(
    ("setting", "distinct"), [("cuda:0,cuda:0", 1), ("cuda:3,cuda:1", 2), ("2xcuda:2", 4), ("3xcpu:1", 3)]
)
def test_ranks_that_share_a_device_count_it_once(setting: str, distinct: int) -> None:
    assert devices.parse(setting).distinct == distinct


@pytest.mark.usefixtures("two_cores")
def test_several_hosts_have_as_many_devices_each() -> None:
    found = devices.parse("3xcpu:2")
    assert (found.hosts, found.per_host, found.names, str(found)) == (3, 2, ("cpu",) * 6, "3xcpu:2")
    assert (found.here(1), found.here(5)) == (("cpu",), ("cpu", "cpu"))
    first, second = ((core,) for core in found.cores)
    assert found.pinned(1) == (first,)
    assert found.pinned(4) == (first, second, (), ()), "ranks elsewhere choose a core of theirs"
    assert not found.oversubscribed(6)


def test_more_workers_than_cores_on_each_host_are_oversubscribed() -> None:
    found = devices.parse(f"2xcpu:{len(available_cores()) + 1}")
    assert [found.oversubscribed(size) for size in (1, found.per_host, 2 * found.per_host)] == [False, True, True]


def test_ranks_that_hosts_get_in_turn_use_the_devices_of_each_in_turn() -> None:
    two = devices.Devices("cuda", ("cuda:0", "cuda:1") * 2, (), hosts=2)
    assert two.spread(5) == (("cuda:0", "cuda:0", "cuda:1", "cuda:1", "cuda:0"), "gloo")
    assert two.backend(two.here(4)) == two.spread(4)[1] == "nccl", "in five ranks two of one host share a GPU"


def test_a_command_for_one_host_refuses_several() -> None:
    assert devices.one_host(devices.parse("cpu:1")).hosts == 1
    with pytest.raises(ValueError, match="devices 2xcpu:1: this command works on one host; leave out '2x'"):
        devices.one_host(devices.parse("2xcpu:1"))


def test_in_a_list_the_number_names_a_gpu_which_may_occur_twice() -> None:
    assert devices.parse("cuda:3").names == ("cuda:0", "cuda:1", "cuda:2")
    assert devices.parse("cuda:3,cuda:1").names == ("cuda:3", "cuda:1")
    twice = devices.parse("cuda:0,cuda:0")
    assert (twice.oversubscribed(1), twice.oversubscribed(2)) == (False, True)


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (None, ["MIG-b1"]),  # one slice, and no whole card next to it
        ("0", ["GPU-aaaa-1"]),
        ("1", ["MIG-b1"]),
        ("0,1", ["MIG-b1"]),
        ("2", []),  # in MIG mode, without a slice
        ("MIG-b2", ["MIG-b2"]),
        ("MIG-b2,MIG-b1", ["MIG-b2"]),
        ("MIG-b", []),
        ("MIG-c", []),
        ("GPU-bbbb", ["MIG-b1"]),
    ],
)
def test_of_mig_slices_cuda_shows_one(setting: str | None, shown: list[str]) -> None:
    assert nvml.visible(UUIDS, setting, {UUIDS[1]: ["MIG-b1", "MIG-b2"], UUIDS[2]: []}) == shown


def test_auto_takes_gpus_where_there_are_any(gpus: Callable[..., Scene]) -> None:
    scene = gpus(2)
    assert devices.parse("auto").names == ("cuda:0", "cuda:1")
    scene.say("library", gpus=0)
    assert devices.parse("auto").kind == "cpu"


def test_a_driver_that_fails_is_no_machine_without_gpus(gpus: Callable[..., Scene], tmp_path: Path) -> None:
    scene = gpus().say("library", init="!18")
    chosen = devices.parse("auto")
    assert chosen.kind == "cpu"
    assert chosen.problem.startswith("NVML fails: RM has detected an NVML/RM version mismatch; compare with nvidia-smi")
    scene.say("library", init="!9")
    assert devices.parse("auto").problem == ""
    with pytest.raises(pynvml.NVMLError) as raised, nvml.opened():
        pass
    assert nvml.trouble(raised.value, tmp_path) == ""
    (tmp_path / "nvidiactl").touch()
    assert nvml.trouble(raised.value, tmp_path) == ""
    (tmp_path / "nvidia0").touch()
    assert nvml.trouble(raised.value, tmp_path).startswith(f"NVML fails although {tmp_path / 'nvidia0'} exists: Driver")


def test_a_card_that_does_not_answer_is_left_out_and_named(gpus: Callable[..., Scene]) -> None:
    gpus(3).say(1, handle="!15")
    chosen = devices.parse("auto")
    assert (len(chosen.names), chosen.problem) == (2, f"NVML's GPU 1 does not answer: GPU is lost; {errors.LOST}")


def test_a_card_in_mig_mode_without_a_slice_is_named(
    gpus: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA shows nothing of it, and the driver works."""
    gpus(2).mig(1)
    chosen = devices.parse("auto")
    assert chosen.names == ("cuda:0",)
    assert chosen.problem == (
        "NVIDIA H100 80GB HBM3 (GPU-00000001-0000-0000-0000-000000000000) is in MIG mode and has no slice; an "
        "administrator makes one (nvidia-smi mig -cgi PROFILE -C, whose profiles nvidia-smi mig -lgip lists) or ends "
        "the mode (nvidia-smi -mig 0)"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert devices.parse("auto").problem == "", "the other one is not wanted"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert "has no slice" in devices.parse("cuda").remedy


def test_a_card_for_one_process_is_refused_where_it_is_used(gpus: Callable[..., Scene]) -> None:
    gpus(3).say(1, compute_mode=2)
    assert devices.parse("auto").refused.startswith("GPU 1 is in compute mode prohibited, ")
    assert devices.parse("cuda:1").refused == devices.parse("cuda:2,cuda:0").refused == ""
    assert devices.parse("cuda:0,cuda:1").refused
    assert devices.parse("cpu").refused == ""


NO_PERMISSION = "!4"


def test_cards_of_other_containers_are_left_out_in_silence(gpus: Callable[..., Scene]) -> None:
    scene = gpus(8)
    for index in (0, 1, 2, 4, 5, 7):
        scene.say(index, handle=NO_PERMISSION)
    chosen = devices.parse("auto")
    assert (chosen.names, chosen.problem) == (("cuda:0", "cuda:1"), "")
    with nvml.opened() as cards:
        assert ([card.uuid[:12] for card in cards.whole], cards.kept_away) == (["GPU-00000003", "GPU-00000006"], 6)


def test_cards_without_a_device_file_here_are_those_of_other_containers(
    gpus: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """NVML answers for all cards of the host, and CUDA shows those whose files the container has."""
    scene = gpus(3)
    for index, minor in enumerate((2, 0, 1)):  # the order of PCI is another one
        scene.say(index, minor=minor)
    monkeypatch.setattr(nvml, "DEVICE_NODES", tmp_path)
    assert len(devices.parse("cuda").names) == 3, "without the driver's files, as under WSL, all are ours"
    for name in ("nvidiactl", "nvidia0", "nvidia2"):
        (tmp_path / name).touch()
    with nvml.opened() as cards:
        assert ([card.uuid[:12] for card in cards.whole], cards.kept_away) == (["GPU-00000000", "GPU-00000001"], 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert devices.survey().gpus == (("GPU-00000001-0000-0000-0000-000000000000",),), "counted among ours, as by CUDA"


def test_where_no_card_is_ours_the_reason_says_what_to_do(gpus: Callable[..., Scene]) -> None:
    gpus(2).say("0", handle=NO_PERMISSION).say("1", handle=NO_PERMISSION)
    chosen = devices.parse("auto")
    assert chosen.kind == "cpu"
    assert chosen.problem == (
        "NVML counts 2 GPU(s), and this process may use none of them; give the container its GPUs (docker run --gpus, "
        "nvidia.com/gpu in Kubernetes), and its user the files /dev/nvidia*"
    )


def test_cpu_workers_are_as_many_as_the_quota_of_a_container_has_cores(
    container: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (devices, limits):
        monkeypatch.setattr(module, "available_cores", lambda: [3, 4, 5, 6])
    container.group(cpu_max="250000 100000")
    for setting in ("cpu", "auto"):
        found = devices.parse(setting)
        assert found.cores == (3, 4)
        assert found.problem == (
            "this container sees 4 cores, and its CPU quota is 2.5: 2 CPU worker(s); raise its CPU limit for more"
        )
    asked = devices.parse("cpu:3")
    assert (asked.cores, asked.problem) == ((3, 4, 5), ""), "the room check names the quota"
    container.group(cpu_max="max 100000")
    assert (devices.parse("cpu").cores, devices.parse("cpu").problem) == ((3, 4, 5, 6), "")


@pytest.mark.parametrize(
    ("source", "build"),
    [
        ("__version__ = '2.15.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", ("2.15.0+cpu", "cpu")),
        ("__version__ = '2.15.0'\ncuda: Optional[str] = '13.2'\nhip: Optional[str] = None\n", ("2.15.0", "cuda")),
        ("__version__ = '2.9.1'\ncuda = None\nhip = '6.4'\n", ("2.9.1", "rocm")),
        ("", ("unknown", "unknown")),
        (None, ("unknown", "unknown")),
    ],
)
def test_torchs_build_is_read_without_loading_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, build: tuple[str, Any]
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('loaded')")
    if source is not None:
        (package / "version.py").write_text(source)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert devices.torch_build() == devices.Build(*build)


def test_with_a_torch_for_cpus_alone_auto_takes_cpus_and_says_why(gpus: Callable[..., Scene]) -> None:
    gpus()
    here = devices.survey(devices.Build("2.15.0+cpu", "cpu"))
    assert here.gpus == ()
    assert here.problem == (
        "NVML shows 2 GPU(s), and torch 2.15.0+cpu is built for CPUs alone: "
        "install one that is built for CUDA (pytorch.org/get-started)"
    )


def test_ranks_are_pinned_near_their_gpus(gpus: Callable[..., Scene]) -> None:
    cores = available_cores()
    first, last = cores[0], cores[-1]
    scene = gpus().say(0, cores=hex(1 << first)).say(1, cores=hex(1 << last | 1 << 63))
    assert devices.parse("cuda").pinned(2) == ((first,), (last,)), "of the cores that this process may use"
    assert devices.parse("cuda:1,cuda:1").pinned(2) == ((last,), (last,))
    assert devices.parse("cuda").pinned(1) == ((first,),)
    scene.say(1, cores="!3")
    assert devices.parse("cuda").pinned(2) == (), "where one is not known all are free"


VALID, CORES = r".*expected auto, cpu\[:N\], cuda\[:N\]", r"cores have no number here, .*; use cpu:2 \(taskset"


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        *((setting, VALID) for setting in ("gpu", "cpu:-1", "cuda:x", "cuda:0,cpu", "", "cuda:0,")),
        # Two ranks on core 0 would otherwise be two cores, unmarked.
        *((setting, CORES) for setting in ("cpu:0,cpu:0", "cpu:2,cpu:3", "cpu,cpu", "cpu:0, cpu")),
        ("xpu", ".*xccl"),
        ("xpu:2", ".*xccl"),
        ("mps", ".*one MPS device"),
        ("rocm:2", ".*torch calls AMD's GPUs cuda: use cuda"),
        ("hip:0,hip:1", ".*use cuda"),
    ],
)
def test_anything_else_is_refused_with_the_reason_or_with_what_is_valid(setting: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"devices '{setting}': {reason}"):
        devices.parse(setting)


# GPUs of AMD, from files in the form of the kernel's; no GPU of AMD has been read.
ROCM = devices.Build("2.15.0+rocm7.1", "rocm")
CPU_NODE = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\n"
MI300 = "simd_count 1216\ngfx_target_version 90402\nunique_id {unique}\nlocation_id {location}\ndomain 0\n"
CORE = available_cores()[0]

Kernel = Callable[..., Path]


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """Write nodes as the kernel does: a CPU, and then so many GPUs; one of `hidden` cannot be read from a container."""

    def write(gpus: int = 2, hidden: int | None = None) -> Path:
        for number in range(gpus + 1):
            node = tmp_path / devices.KFD_NODES / str(number)
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
    gpus = devices.amd_gpus(environment, kernel(3))
    assert [gpu.uuid for gpu in gpus] == [f"GPU-{0xA0 + number:016x}" for number in shown]
    assert {gpu.name for gpu in gpus} <= {"AMD gfx942"}


def test_a_gpu_that_a_container_may_not_use_is_not_counted(kernel: Kernel) -> None:
    assert [gpu.handle for gpu in devices.amd_gpus({}, kernel(3, hidden=2))] == ["0000:01:00.0", "0000:03:00.0"]


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
    assert (described.gpu_topology, described.problem) == ("?", devices.AMD_UNREAD)
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
