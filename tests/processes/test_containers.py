"""Real control groups and mounts: what a process in a container reads of its limits, and what workers do at them."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.room.quiet import available_cores
from tests.support.containers import ControlGroup, needs_root, output, pod
from tests.support.nvml import Scene
from tests.support.project import needs_two_cores

pytestmark = needs_root
PERIOD_US = 100_000
MB = 10**6


def quota(cores: float) -> dict[str, object]:
    return {"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": int(cores * PERIOD_US)}


def memory(limit_mb: int) -> dict[str, object]:
    return {"memory.limit_in_bytes": limit_mb * MB}


DEVICES = """\
from suite.room import devices, limits
chosen = devices.parse("cpu")
print(limits.cpu_quota(), len(chosen.names), chosen.problem)
"""


@needs_two_cores
def test_cpu_workers_follow_a_quota() -> None:
    cores = len(available_cores())
    with ControlGroup(cpu=quota(1.5)) as group:
        said = group.python(DEVICES)
    assert said.strip() == (
        f"1.5 1 this container sees {cores} cores, and its CPU quota is 1.5: 1 CPU worker(s); raise its CPU limit for "
        "more"
    )


THREADS = """\
import os, torch
from suite.rank.arm import share_quota
before = torch.get_num_threads()
os.environ["LOCAL_WORLD_SIZE"] = "2"
share_quota(1)
print(before, torch.get_num_threads())
"""


@pytest.mark.nightly
@needs_two_cores
def test_ranks_on_gpus_compute_with_the_threads_of_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP itself counts the cores that it may run on."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with ControlGroup(cpu=quota(1.5)) as group:
        before, after = map(int, group.python(THREADS).split())
        assert before > after == 1
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        assert group.python(THREADS).split() == ["2", "2"]
    with ControlGroup(cpu=quota(len(available_cores()))) as group:
        monkeypatch.delenv("OMP_NUM_THREADS")
        before, after = map(int, group.python(THREADS).split())
        assert before == after


METER = """\
from suite.room.devices import parse
from suite.room.meter import Meter
with Meter(parse("cpu")) as meter:
    reading = meter.read()
    print(len(parse("cpu").names), reading.cores, reading.counters, meter.since(reading).cores)
"""


@needs_two_cores
def test_the_cores_of_a_cpuset_are_those_that_count() -> None:
    with ControlGroup(cpuset={"cpuset.cpus": available_cores()[1], "cpuset.mems": 0}) as group:
        assert group.python(METER).split() == ["1", "1", "1", "1"]


MEMORY = """\
import json, sys
from pathlib import Path
from suite.room import limits

read = [limits.memory()]
held = bytearray(100_000_000)
read.append(limits.memory())
file = Path(sys.argv[1])
file.write_bytes(held)
file.read_bytes()
read.append(limits.memory())
print(json.dumps([(each.limit_bytes, each.left_bytes, each.ends_all) for each in read]))
"""


def test_memory_is_what_the_group_has_left_and_files_do_not_count(tmp_path: Path) -> None:
    with ControlGroup(memory=memory(600)) as group:
        command = group.command(sys.executable, "-c", MEMORY, str(tmp_path / "file"))
        read = json.loads(output(command, timeout_s=60))
    assert {limit for limit, *_ in read} == {600 * MB // 4096 * 4096}
    first, held, with_file = (left for _, left, _ in read)
    assert first - held == pytest.approx(100 * MB, abs=10 * MB)
    assert with_file == pytest.approx(held, abs=20 * MB)


POOL = """\
import sys
from suite.processes.failure import WorkerFailure
from suite.processes.pool import Pool

def ask(pool, ranks, function, **arguments):
    group = pool.group("ranks", ranks)
    try:
        print(group.request(dict, "call", 60.0, function=function, arguments=arguments))
    except WorkerFailure as failure:
        print(failure.cause, flush=True)

try:
    with Pool(kind="cpu") as pool:
        try:
            pool.group("many", 64)
        except WorkerFailure as failure:
            print(failure.cause, flush=True)
        ask(pool, 1, f"{sys.argv[1]}:take", size=2_000_000_000)
        ask(pool, 1, f"{sys.argv[1]}:take", size=1)
except ValueError as error:
    print(error)
"""
TAKE = """\
def take(size):
    return len(b"x" * size)
"""


def test_a_group_that_does_not_fit_is_refused_and_one_that_takes_too_much_says_so(tmp_path: Path) -> None:
    (tmp_path / "taking.py").write_text(TAKE)
    with ControlGroup(memory=memory(1_200)) as group:
        command = group.command(sys.executable, "-c", POOL, str(tmp_path / "taking.py"))
        refused, ended, after = output(command, timeout_s=90).strip().splitlines()
    assert refused.startswith("memory: 64 worker(s) take 1.6 GB at least, and this container may use 0.")
    assert " GB more of its 1.2 GB: there is room for " in refused
    assert ended == (
        "rank 0: its process ended with signal 9 (SIGKILL); the kernel has ended a process of this container because "
        "memory ran out: raise the container's memory limit, or use a smaller batch or fewer devices"
    )
    assert after == "[{'returned': 1}]", "the template is alive"


def test_without_memory_for_one_process_nothing_starts() -> None:
    with ControlGroup(memory=memory(300)) as group:
        said = group.python(POOL)
    assert said.startswith("memory: 1 worker(s) take 0.4 GB at least, and this container may use 0.")
    assert ": there is room for 0; raise the container's memory limit" in said


CARDS = """\
import sys
from pathlib import Path
from suite.room import devices, nvml
nvml.DEVICE_NODES = Path(sys.argv[1])
print(*devices.parse("cuda").names)
"""


def test_a_card_whose_device_the_kernel_denies_is_not_ours(
    scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The files are there, as in a privileged image; the group of devices decides. They are those of /dev/full."""
    scene(2).export(monkeypatch).say(0, minor=0).say(1, minor=1)
    full = os.stat("/dev/full").st_rdev
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia1").touch()
    os.mknod(tmp_path / "nvidia0", stat.S_IFCHR | 0o666, full)
    for denied, shown in ((False, "cuda:0 cuda:1"), (True, "cuda:0")):
        deny = {"devices.deny": f"c {os.major(full)}:{os.minor(full)} rwm"} if denied else {}
        with ControlGroup(devices=deny) as group:
            command = group.command(sys.executable, "-c", CARDS, str(tmp_path))
            assert output(command, timeout_s=60).strip() == shown


LOADER = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from suite.room.errors import described
if __name__ == "__main__":
    try:
        list(DataLoader(TensorDataset(torch.zeros(64, 1 << 16)), batch_size=32, num_workers=1))
    except RuntimeError as error:
        print(described(error))
"""


def test_a_loader_that_fills_shared_memory_is_told_in_one_line(tmp_path: Path) -> None:
    """8 MB into one: a real loader, a real file system."""
    said = output(pod("1m", tmp_path, sys.executable, "-c", LOADER), timeout_s=90).strip()
    assert said.startswith("RuntimeError: unable to allocate shared memory(shm) for file </torch_")
    assert said.endswith("(docker run --shm-size=1g; in Kubernetes, mount an emptyDir with medium: Memory there)")
    assert "\n" not in said
