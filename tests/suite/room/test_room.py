"""The room check: what it names, in which words, and what it never shows."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from suite.room import check, limits
from suite.room.conditions import Conditions
from suite.room.devices import Devices, parse
from suite.room.quiet import available_cores
from tests.support.containers import Files, on_cores
from tests.support.nvml import Scene
from tests.support.processes import BURN, RENAMED, running, wait_for_use

CPU = Devices("cpu", ("cpu", "cpu"), (0, 1))
TWO_GPUS = Devices("cuda", ("cuda:0", "cuda:1"), ())


def test_a_busy_process_of_others_is_named_and_a_worker_is_not(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BURN)
    with running("-u", str(script), "--token", "hunter2") as busy:
        name = psutil.Process(busy.pid).name()
        strangers = check.neighbours(parse("cpu"), own=[], sample_s=1.0)
        ours = check.neighbours(parse("cpu"), own=[busy.pid])
        default = check.neighbours(CPU)
    [line] = [line for line in strangers if f"(pid {busy.pid})" in line]
    assert line.startswith(f"{name} train.py (pid {busy.pid}) uses ")
    assert line.endswith("% of a core")
    assert not any(f"(pid {busy.pid})" in line for line in (*ours, *default)), "ours, and what we start"
    assert not any("hunter2" in line or str(tmp_path) in line for line in strangers)


@pytest.mark.skipif(sys.platform != "linux", reason="names are set with prctl")
def test_a_hostile_name_stays_on_its_line() -> None:
    with running("-c", RENAMED) as busy:
        busy.stdout.readline()
        assert check.label(psutil.Process(busy.pid)) == "a) R 1 (?2 3"
        found = check.neighbours(CPU, own=[], sample_s=1.0)
    assert any(line.startswith(f"a) R 1 (?2 3 (pid {busy.pid}) uses ") for line in found)


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("python", ["/home/me/train.py", "--key", "s3cret"], "python train.py"),
        ("python3.12", ["-uO", "train.py"], "python3.12 train.py"),
        ("python", ["-m", "package.train", "s3cret"], "python package.train"),
        ("python", ["-c", "s3cret"], "python"),
        ("python", ["-X", "s3cret", "train.py"], "python"),
        ("python", ["user:s3cret@host"], "python"),
        ("python", ["a b s3cret"], "python"),
        ("python", ["x\ny.py"], "python"),
        ("python", ["-m"], "python"),
        ("python", [], "python"),
        ("bash", ["build.sh", "s3cret"], "bash build.sh"),
        ("bash", ["-c", "curl s3cret"], "bash"),
        ("node", ["--require", "s3cret", "server.js"], "node"),
        ("perl", ["-E", "s3cret"], "perl"),
        ("mysql", ["s3cret"], "mysql"),
        ("service-with-a-title s3cret", ["s3cret"], "service-with-a-"),
        ("\x1b[31mred", [], "?[31mred"),
    ],
)
def test_only_the_script_of_a_command_line_is_shown(name: str, arguments: list[str], shown: str) -> None:
    process = SimpleNamespace(name=lambda: name, cmdline=lambda: ["argv0", *arguments])
    assert check.label(process) == shown


def test_a_command_line_that_may_not_be_read_leaves_the_name() -> None:
    def cmdline() -> list[str]:
        raise psutil.AccessDenied

    assert check.label(SimpleNamespace(name=lambda: "python", cmdline=cmdline)) == "python"


def conditions(**differently: float) -> Conditions:
    quiet = {"elapsed_s": 0.3, "cores": 2, "steal": 0.0, "foreign": 0.1, "resolution": 0.05, "load": 2.0}
    return Conditions.model_validate(quiet | differently)


def test_a_new_process_had_used_nothing_before() -> None:
    old, new = psutil.Process(), psutil.Process(os.getppid())
    assert check._shares({old: (10.0, 4.0)}, {old: (10.5, 4.1), new: (10.5, 0.2)}) == pytest.approx(
        {old: 0.2, new: 0.4}
    )


@pytest.mark.parametrize(
    ("differently", "named", "line"),
    [
        ({}, 0.0, None),
        ({"foreign": 0.9}, 0.8, None),
        ({"foreign": 0.9}, 0.2, "processes that are short-lived, or not visible from here, use 70% of a core"),
        ({"steal": 0.3}, 0.1, "the hypervisor keeps 30% of a core for others"),
        ({"load": 3.14, "cores": 1}, 0.0, "the load average of the last minute is 3.1 on 3 cores: wait until it falls"),
    ],
)
def test_what_the_whole_machine_shows_is_named(
    differently: dict[str, float], named: float, line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load is of all cores, also where this process may use one of them."""
    monkeypatch.setattr(psutil, "cpu_count", lambda: 3)
    assert list(check._machine(conditions(**differently), named)) == ([line] if line else [])


def test_a_quota_below_what_the_run_needs_is_named(container: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_cores", lambda: [0, 1])
    assert not list(check._quota(CPU))
    container.group(cpu_max="150000 100000")
    [line] = check._quota(CPU)
    assert line == "this container may use 1.5 cores and the run needs 2: raise its CPU limit, or use fewer"
    assert not list(check._quota(Devices("cpu", ("cpu", "cpu"), (0, 0))))


def test_ranks_on_gpus_say_with_how_many_threads_they_compute_under_a_quota(
    container: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "available_cores", lambda: list(range(64)))
    monkeypatch.setattr(check, "available_cores", limits.available_cores)
    container.group(cpu_max="800000 100000")
    [line] = check._quota(TWO_GPUS)
    assert line == (
        "this container sees 64 cores, and its CPU quota is 8: 2 rank(s) compute on them with 4 thread(s) each; "
        "OMP_NUM_THREADS sets another number"
    )
    container.group(cpu_max="150000 100000")
    assert [line.partition(":")[0] for line in check._quota(TWO_GPUS)] == [
        "this container may use 1.5 cores and the run needs 2",
        "this container sees 64 cores, and its CPU quota is 1.5",
    ]


def test_little_shared_memory_is_named_where_nccl_may_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LEAST_SHARED_BYTES", 1 << 80)
    [line] = check._shared_memory(TWO_GPUS, tmp_path)
    assert re.fullmatch(
        rf"{re.escape(str(tmp_path))} has \d+ MiB, which may be too little for NCCL: give the container more "
        r"\(docker run --shm-size=1g; in Kubernetes, mount an emptyDir with medium: Memory there\)",
        line,
    )
    for others in (CPU, parse("cuda:0,cuda:0"), parse("cuda:1")):
        assert not list(check._shared_memory(others, tmp_path))
    assert not list(check._shared_memory(TWO_GPUS, tmp_path / "none"))


def test_a_process_that_may_not_run_on_our_cores_is_not_named() -> None:
    """On a machine of many pods."""
    others = set(available_cores())
    ours = {others.pop()}
    if not others:
        pytest.skip("the machine has one core")
    with running("-c", BURN) as busy, on_cores(ours):
        os.sched_setaffinity(busy.pid, ours)
        wait_for_use(busy.pid, 0.1)
        assert psutil.Process(busy.pid) in check._sample()
        os.sched_setaffinity(busy.pid, others)
        assert psutil.Process(busy.pid) not in check._sample()


def test_a_governor_that_saves_power_is_named(tmp_path: Path) -> None:
    for core, governor in enumerate(("powersave", "performance")):
        folder = tmp_path / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    [line] = check._governor((0, 1, 2), tmp_path)
    assert line.startswith("the governor of 1 of the 3 cores in use is powersave")
    assert not list(check._governor((1, 2), tmp_path))


def test_two_threads_of_one_core_are_named(tmp_path: Path) -> None:
    for core, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert not list(check._siblings((0, 1), tmp_path))
    [line] = check._siblings((0, 1, 2), tmp_path)
    assert line == "cores 0, 2 are threads of one physical core: their ranks slow each other down"
    assert not list(check._siblings((0, 9), tmp_path))


def test_processes_on_a_gpu_are_named(scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = scene().load(monkeypatch).say("*", busy=97)
    nvml.say(0, processes=f"4000001 {os.getpid()}").say(1, processes=4_000_002)
    assert list(check._gpus(parse("cuda:1"), {os.getpid()})) == [
        "process 4000001 holds 3.0 GB of GPU 0",
        "GPU 0 is busy 97% of the time",
    ]
    assert f"(pid {os.getpid()}) holds 3.0 GB of GPU 0" in list(check._gpus(parse("cuda:1"), set()))[1]
