"""What is recorded about the machine and the repository."""

from __future__ import annotations

import configparser
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from suite.room.devices import Build, Devices
from suite.run import machine, plan
from tests.support.measurements import settings
from tests.support.nvml import Scene
from tests.support.project import REPOSITORY
from tests.support.repositories import Repository

GPUS = Devices("cuda", ("cuda:0",), ())
MARKS = {
    "etc/machine-id": "m",
    "sys/class/net/eth0/address": "02:00",
    "sys/class/dmi/id/product_uuid": "d",
    "proc/sys/kernel/random/boot_id": "b",
}


def test_the_main_branch_is_the_remotes_or_a_local_one(tmp_path: Path) -> None:
    assert machine.main_branch(tmp_path) == ""
    made = Repository(tmp_path, "--initial-branch=topic")
    made.commit()
    assert machine.main_branch(tmp_path) == ""
    made.git("branch", "master")
    assert machine.main_branch(tmp_path) == "master"
    made.git("update-ref", "refs/remotes/origin/trunk", "HEAD")
    made.git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    assert machine.main_branch(tmp_path) == "origin/trunk"


def test_a_branch_without_a_trainer_of_the_run_is_none_to_compare_with(tmp_path: Path) -> None:
    made = Repository(tmp_path, "--initial-branch=main")
    project = tmp_path / "project"
    made.commit({"project/train.py": "class Mine: ...", "project/mine/a.py": "class A: ...", "b.py": ""})
    used = [(project / "train.py", "Mine"), (project / "mine/a.py", "A"), (project / "absent.py", "X")]
    used.append((project / "../b.py", "B"))
    assert machine.main_branch(project, used) == "main"
    made.git("checkout", "--quiet", "-b", "topic")
    made.commit({"project/new.py": "class New: ...", "project/train.py": "class Mine: ...\nclass Newer: ..."})
    assert machine.main_branch(project, used) == "main"
    assert machine.main_branch(project, [*used, (project / "new.py", "New")]) == ""
    assert machine.main_branch(project, [*used, (project / "train.py", "Newer")]) == ""


def test_a_branch_that_the_remote_has_renamed_is_none_to_compare_with(tmp_path: Path) -> None:
    made = Repository(tmp_path, "--initial-branch=main")
    made.commit()
    made.git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/gone")
    assert machine.main_branch(tmp_path) == "main"


@pytest.mark.parametrize(
    ("trainer", "file"),
    [
        ("mine.py:Mine", "mine.py"),
        ("trainers.new:Mine", "trainers/new.py"),
        ("trainers:Mine", "trainers/__init__.py"),
        ("ddp", None),
    ],
)
def test_the_file_of_a_trainer_is_found(tmp_path: Path, trainer: str, file: str | None) -> None:
    files = plan._files(settings(root=tmp_path, trainers=(trainer,)))
    assert ((tmp_path / str(file), "Mine") in files) == (file is not None)


def marks(root: Path, **changed: str) -> Path:
    """Write the files that tell hosts apart; a value of "" leaves a file out."""
    for path, text in MARKS.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        if content := changed.get(file.name.replace("-", "_"), text):
            file.write_text(f"{content}\n")
    return root


def test_hosts_of_one_image_have_different_ids(tmp_path: Path) -> None:
    def host(*cards: str, **changed: str) -> str:
        return machine.host_id(cards, {}, marks(tmp_path, **changed))

    def differs(mark: str, *cards: str, **changed: str) -> bool:
        return host(*cards, **changed) != host(*cards, **changed, **{mark: "another"})

    assert differs("product_uuid")
    assert not differs("boot_id"), "the same host after a restart"
    assert differs("boot_id", product_uuid=""), "nothing else tells them apart"
    assert not differs("address"), "the address of a container's virtual interface is drawn at its start"
    (tmp_path / "sys/class/net/eth0/device").touch()  # an interface with hardware
    assert differs("address")
    assert not differs("product_uuid"), "the same for root and for everybody else"
    assert not differs("address", "GPU-1")
    assert host("GPU-1", "GPU-2") == host("GPU-2", "GPU-1") != host("GPU-1", "GPU-3")
    assert differs("machine_id", "GPU-1")
    assert host(machine_id="", address="", product_uuid="", boot_id="")


def test_ci_may_name_the_host(tmp_path: Path) -> None:
    named = {"SCALING_HOST_ID": "runner-7"}
    one = machine.host_id(["GPU-1"], named, marks(tmp_path))
    assert one == machine.host_id(["GPU-2"], named, marks(tmp_path, machine_id="another", product_uuid="another"))
    assert one != machine.host_id(["GPU-1"], {"SCALING_HOST_ID": " "}, marks(tmp_path))
    assert "runner" not in one, "a public record does not name it"


@pytest.mark.parametrize(
    ("shown_gib", "gib"), [(0.2, 1), (1.9, 2), (3.8, 4), (5.8, 6), (7.6, 8), (15.4, 16), (23.54, 24), (31.1, 32)]
)
def test_memory_that_the_kernel_keeps_does_not_change_the_key(shown_gib: float, gib: int) -> None:
    assert machine.installed_gib(round(shown_gib * 2**30)) == gib
    assert machine.installed_gib(round(shown_gib * 0.98 * 2**30)) == gib


def key(gpus: Callable[..., Scene], *names: str, hosts: int = 1) -> str:
    gpus(8)
    return machine.describe(Devices("cuda", names, (), hosts=hosts), Build("13.2", "cuda")).key


def test_runs_on_other_gpus_of_a_machine_are_not_compared(gpus: Callable[..., Scene]) -> None:
    """The first two may have NVLink, and the first and the fifth a way between sockets."""
    first = key(gpus, "cuda:0", "cuda:1")
    assert first == key(gpus, "cuda:0") == key(gpus, "cuda:1", "cuda:0") == key(gpus, "cuda:0", "cuda:0")
    assert len({first, key(gpus, "cuda:0", "cuda:4"), key(gpus, "cuda:4", "cuda:5"), key(gpus, "cuda:4")}) == 4


def test_on_several_hosts_the_devices_of_each_count(gpus: Callable[..., Scene]) -> None:
    """Eight devices of two hosts with eight each are on one of them, and cross the network with four each."""
    eight, four = (key(gpus, *[f"cuda:{index}" for index in range(each)] * 2, hosts=2) for each in (8, 4))
    assert eight != four
    assert four.startswith("2xcuda-8x")


def test_variables_that_change_a_gpu_run_are_recorded() -> None:
    given = {
        "NCCL_ALGO": "Ring",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "TORCH_CUDNN_V8_API_DISABLED": "1",
        "TORCH_BLAS_PREFER_CUBLASLT": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "OMP_NUM_THREADS": "8",
        "TORCH_HOME": "/home/secret",
        "CUDA_VISIBLE_DEVICES": "0",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "a",
        "NVIDIA_TF32_OVERRIDE": "0",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HOME": "/home/secret",
        "NVIDIA_REQUIRE_CUDA": "cuda>=12",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "NCCL_LONG": "x" * 999,
    }
    recorded = machine.variables(GPUS, given)
    ours = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_LONG": "x" * 200}
    left_out = ("HOME", "TORCH_HOME", "NVIDIA_REQUIRE_CUDA", "AWS_SECRET_ACCESS_KEY")
    assert recorded == {name: value for name, value in given.items() if name not in left_out} | ours
    assert machine.variables(Devices("cpu", ("cpu",), (0,)), given) == {}
    many = {f"NCCL_{number:03}": "1" for number in range(100)}
    assert len(machine.variables(GPUS, many)) == 64


def test_tox_passes_what_is_recorded_and_the_name_of_the_host() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(REPOSITORY / "tox.ini")
    passed = tox["testenv"]["pass_env"].split()
    names = ("CUDA_DEVICE_ORDER", "NCCL_ALGO", "TORCH_NCCL_BLOCKING_WAIT", "PYTORCH_CUDA_ALLOC_CONF")
    names += ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_MAX_AUTOTUNE")
    for name in (*names, "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", machine.HOST_ID):
        assert any(fnmatchcase(name, pattern) for pattern in passed), name
