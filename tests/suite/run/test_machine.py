"""What is recorded about the machine and the repository, and what a run shows of scenes of GPUs."""

from __future__ import annotations

import configparser
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from suite.records.record import Machine, Record
from suite.render import html, lead, markdown, terminal
from suite.room import errors
from suite.room.check import neighbours
from suite.room.conditions import disturbed
from suite.room.devices import Build, Devices, parse
from suite.room.meter import Meter
from suite.run import machine, plan
from tests.support import records
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


Gpus = Callable[..., Scene]
RUN = {"started_utc": records.STARTED, "wall_s": 1.0, "windows": []}


def here() -> Machine:
    return machine.describe(parse("auto"))


def run(change: Callable[[], object] = lambda: None, used: int | None = None) -> Record:
    """Return the record of a run of one block, during which the scene changes; so many GPUs work, by default all."""
    devices = parse("auto")
    with Meter(devices) as meter:
        before = meter.read()
        change()
        meter.worked(devices.names[:used])
        conditions = meter.since(before)
    seen = neighbours(devices, sample_s=0.01)
    seen_of_gpus = conditions.model_copy(update={"foreign": None, "steal": None})
    session = {"number": 0, **RUN, "conditions": [seen_of_gpus.model_dump()]}
    return records.make(machine=machine.describe(devices).model_dump(), sessions=[session], neighbours=seen)


def first_screen(record: Record) -> tuple[str, ...]:
    """Return what is unusual, which every output shows first."""
    [first, *_] = lead.facts(record)
    lines = first.lines if first.name == "Hardware" else ()
    for page in (terminal.render(record, 160, color=False), markdown.render(record), html.render(record)):
        assert all(line.replace("'", "&#39;") in page or line in page for line in lines)
        assert bool(lines) == ("Hardware" in page)
    return lines


def test_eight_cards_with_nvlink(gpus: Gpus) -> None:
    scene = gpus(8)
    slower_links = here()
    assert slower_links.gpu_topology == "SYS"
    scene.say("*", nvlinks=18)
    machine = here()
    assert machine.key.startswith("cuda-8xnvidia-h100-80gb-hbm3-")
    assert machine.key != slower_links.key, "NVLink is hardware"
    assert machine.host == slower_links.host
    assert (machine.gpu_topology, machine.driver) == ("NV18", "580.65.06")
    assert first_screen(run()) == ()
    page = html.render(run())
    assert "80 GiB, capability 9.0, 18 NVLinks, PCIe x16 generation 5, 1 cores near, at most 700 W" in page
    assert "compute mode default, persistence on, ECC on (0, 1, 2, 3, 4, 5, 6, 7)" in page


def test_links_between_two_cards_are_counted(gpus: Gpus) -> None:
    scene = gpus(3)
    scene.say(0, nvlinks=4, nvlink_bus="00000000:02:00.0").say(1, nvlinks=4, nvlink_bus="00000000:01:00.0")
    scene.say(0, **{"ancestor.2": 20})
    assert here().gpu_topology == "0-1 NV4, 0-2 PXB, 1-2 SYS"


def test_mixed_cards_are_in_pci_order(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's own order begins with the fastest card; workers are told to use that of NVML."""
    scene = gpus()
    scene.say(0, name="NVIDIA T4", capability=75, mhz=1590, max_mhz=1590, power_limit=70_000)
    record = run()
    assert record.machine.gpus == ("NVIDIA T4", "NVIDIA H100 80GB HBM3")
    assert [card.capability for card in record.machine.cards] == ["7.5", "9.0"]
    assert [gpu.mhz for gpu in record.sessions[0].conditions[0].gpus] == [1590, 1980]
    assert first_screen(record) == (), "cards of different names are no twins"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert machine.variables(parse("cuda"))["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_mig_slice_is_another_machine_than_its_card(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = gpus(1)
    whole = here()
    scene.mig(0, (1, 1, 9856), (3, 3, 40448), (4, 2, 40448))
    for index, profile in enumerate(("1g.10gb", "3g.40gb", "2c.4g.40gb")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-0000000{index}")
        slice_ = here()
        assert slice_.gpus == (f"NVIDIA H100 80GB HBM3 MIG {profile}",)
        assert slice_.key != whole.key
        assert slice_.host == whole.host
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert here().gpus == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb",), "CUDA shows the first"


def test_memory_errors_come_first_and_change_no_outcome(gpus: Gpus) -> None:
    scene = gpus(4).say(1, uncorrected=3).say(2, remapped=2).say(3, remapped=1, remap_pending=1, remap_failed=1)
    record = run(lambda: scene.say(1, uncorrected=4))
    assert first_screen(record) == (
        f"GPU 1 has had 4 uncorrected memory error(s) since the driver was loaded; {errors.UNCORRECTED}",
        "GPU 2 has replaced 2 bad row(s) of its memory after uncorrectable errors",
        "GPU 3 could not replace a bad row of its memory: have it exchanged",
        "GPU 3 replaces a bad row of its memory at its next reset",
        f"GPU 1 had 1 uncorrected memory error(s) during the run; {errors.UNCORRECTED}",
    )
    assert disturbed(record.sessions[0].conditions[0]) == ""
    assert lead.title(record) == lead.title(records.make())


def test_a_card_below_its_twins_is_named(gpus: Gpus) -> None:
    gpus(4).say(2, mhz=1200, power_limit=300_000, lanes=4)
    assert first_screen(run()) == (
        "GPU 2 uses 4 of its 16 PCIe lanes",
        "GPU 2's power limit is 300 W, and its twins' is 700 W",
        "GPU 2's clock is 1200 MHz, and its twins' is 1980 MHz",
    )


def test_a_card_that_rested_is_not_compared_with_its_twins(gpus: Gpus) -> None:
    """Where the cell on four of eight is the last of a block, four have had no work for a while."""
    scene = gpus(8)
    for resting in range(4, 8):
        scene.say(resting, mhz=345)
    assert first_screen(run(used=4)) == ()


def test_cards_that_cannot_reach_each_other_are_named(gpus: Gpus) -> None:
    gpus(3).say(0, **{"p2p.2": 1}).say(2, **{"p2p.0": 1, "p2p.1": "!3"})
    assert first_screen(run()) == (
        "GPU 0 cannot read the memory of GPU 2 directly (P2P): exchanges go through the host",
        "GPU 2 cannot read the memory of GPU 0 directly (P2P): exchanges go through the host",
    )


def test_throttling_between_two_readings_is_seen(gpus: Gpus) -> None:
    scene = gpus()
    record = run(lambda: scene.say(0, thermal_ns=5, power_ns=9, millijoules=900_000))
    assert first_screen(record) == (
        "GPU 0 lowered its clocks to protect itself (sw_thermal_slowdown) in 1 of 1 blocks",
    )
    [conditions] = record.sessions[0].conditions
    assert conditions.gpus[0].throttled == ("sw_power_cap", "sw_thermal_slowdown")
    assert conditions.gpus[0].watts
    assert "GPU 0 was throttled" in disturbed(conditions)
    assert " W, sw_power_cap, sw_thermal_slowdown" in html.render(record)


def test_processes_of_others_are_in_the_record_and_in_every_output(gpus: Gpus) -> None:
    """One was there before the run, and one comes while a block is timed."""
    scene = gpus().say(0, processes=4_000_001)
    record = run(lambda: scene.say(1, processes=4_000_002))
    held = ("process 4000001 holds 3.0 GB of GPU 0", "process 4000002 holds 3.0 GB of GPU 1")
    assert set(held) <= set(record.neighbours)
    for page in (markdown.render(record), html.render(record)):
        assert all(sentence in page for sentence in held)
    [conditions] = record.sessions[0].conditions
    assert [gpu.newcomers for gpu in conditions.gpus] == [(), (4_000_002,)]
    newcomer = "another process appeared on GPU 1 (pid 4000002)"
    assert disturbed(conditions) == newcomer
    assert newcomer in html.render(record)


def test_a_card_for_one_process_is_named_and_under_mps_its_sharing(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    gpus(4).say(0, compute_mode=3).say(1, compute_mode=2).say(2, compute_mode=1)
    first, second, third = first_screen(run())
    assert first == (
        "GPU 0 is in compute mode exclusive process, and a run has several processes on each GPU; allow them (as root, "
        "nvidia-smi -c DEFAULT), or start MPS (nvidia-cuda-mps-control -d)"
    )
    assert second.startswith("GPU 1 is in compute mode prohibited, ")
    assert third.startswith("GPU 2 is in compute mode exclusive thread, ")
    assert "MPS" not in second + third, "MPS does not open these"
    (tmp_path / "control").touch()
    shared, *others = first_screen(run())
    assert shared == "GPU 0 is shared by MPS: an error of one process on it can end the others"
    assert others == [second, third]


def test_a_card_that_refuses_nearly_everything_is_described(gpus: Gpus) -> None:
    scene = gpus()
    for code in ("!3", "!4"):
        scene.say("*", **dict.fromkeys(("mhz", "celsius", "reasons", "thermal_ns", "uncorrected", "remapped"), code))
        scene.say("*", **dict.fromkeys(("power_limit", "compute_mode", "lanes", "capability", "bytes", "cores"), code))
        scene.say("*", **dict.fromkeys(("processes", "ancestor", "persistence", "ecc", "millijoules"), code))
        record = run()
        assert record.machine.gpus == ("NVIDIA H100 80GB HBM3",) * 2
        assert record.machine.gpu_topology == "?"
        assert first_screen(record) == ()
        assert disturbed(record.sessions[0].conditions[0]) == ""


def test_a_card_that_falls_off_in_the_middle_is_named_first(gpus: Gpus) -> None:
    scene = gpus()
    record = run(lambda: scene.say(1, handle="!15", xids=79, **dict.fromkeys(("mhz", "celsius", "processes"), "!15")))
    assert first_screen(record) == (
        f"GPU 1 had fallen off its bus in 1 of 1 blocks; {errors.LOST}",
        "GPU 1 had Xid errors 79 during the run: NVIDIA's list says what they mean",
    )


def test_gpus_that_cannot_be_used_are_named_first_on_a_run_of_cpus(gpus: Gpus) -> None:
    gpus().say("library", init="!18")
    record = run()
    assert record.machine.key.startswith("cpu-")
    [line] = first_screen(record)
    assert line.startswith("NVML fails: RM has detected an NVML/RM version mismatch")
