"""The allocator settings of a worker's environment, and their effect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from suite.checks.bench import Bench
from suite.room import quiet
from tests.support.project import REPOSITORY

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

FILL = """\
block = bytearray(48 << 20)
print(open("/proc/self/smaps_rollup").read().partition("AnonHugePages:")[2].split()[0])
"""


def test_tunables_of_the_user_stay_and_take_precedence() -> None:
    tunables = quiet.environment({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=1"}, "cpu")
    # glibc reads from left to right, and the last of two counts.
    assert tunables["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1:glibc.malloc.hugetlb=0:glibc.malloc.arena_max=1"
    assert quiet.environment({}, "cpu")["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies are Linux's")
@pytest.mark.parametrize(("running", "policy"), [(1, "SCHED_BATCH"), (2, "SCHED_OTHER"), (17, "SCHED_OTHER")])
def test_ranks_interrupt_each_other_only_where_something_else_runs(running: int, policy: str, tmp_path: Path) -> None:
    loadavg = tmp_path / "loadavg"
    loadavg.write_text(f"0.52 0.58 0.59 {running}/467 3124\n")
    share = "import sys, pathlib; from suite.room import quiet; quiet.share_cores(pathlib.Path(sys.argv[1]))"
    asked = f"{share}; import os; print(os.sched_getscheduler(0) == os.{policy})"
    command = [sys.executable, "-c", asked, str(loadavg)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "True\n"


def policies_of_threads() -> dict[str, list[bool]]:
    """Return whether this rank, pinned or not, and a thread that it starts then let other threads finish."""
    import torch

    from suite.processes.jobs import Place
    from suite.rank.arm import bind

    assert torch.get_num_threads()
    found: dict[str, list[bool]] = {}
    for what, pinned in (("free", ()), ("pinned", ((quiet.available_cores()[0],),))):
        bind(0, Place(processes="one", devices=("cpu",), backend="gloo", pinned=pinned))
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(os.sched_getscheduler, 0).result()
        found[what] = [policy == os.SCHED_BATCH for policy in (os.sched_getscheduler(0), later)]
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies are Linux's")
def test_threads_of_a_pinned_rank_take_turns() -> None:
    """Those of gloo would interrupt the one that trains."""
    here = "tests.processes.test_quiet"
    asked = f"import json, {here}; print(json.dumps({here}.policies_of_threads()))"
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=100, cwd=REPOSITORY
    )
    assert json.loads(done.stdout) == {"free": [False, False], "pinned": [True, True]}


@pytest.mark.parametrize(("kind", "shown"), [("cpu", ""), ("cuda", "0,1")])
def test_cpu_workers_see_no_gpu(kind: str, shown: str) -> None:
    assert quiet.environment({"CUDA_VISIBLE_DEVICES": "0,1"}, kind)["CUDA_VISIBLE_DEVICES"] == shown


def test_backends_use_loopback_unless_the_user_names_an_interface() -> None:
    plain, loopback = quiet.environment({}, "cuda"), "lo" if sys.platform == "linux" else "lo0"
    assert (plain["GLOO_SOCKET_IFNAME"], plain["NCCL_SOCKET_IFNAME"]) == (loopback, f"={loopback}")
    assert quiet.environment({"NCCL_SOCKET_IFNAME": "ib0"}, "cuda")["NCCL_SOCKET_IFNAME"] == "ib0"


def test_only_workers_that_time_nothing_give_up_time_for_equal_bits(bench: Bench) -> None:
    """NVIDIA_TF32_OVERRIDE=1 of an image would outweigh what torch is told."""
    inherited = {"NVIDIA_TF32_OVERRIDE": "1"}
    assert quiet.environment(inherited, "cuda").items().isdisjoint(quiet.EXACT.items())
    assert quiet.EXACT.items() <= quiet.environment(inherited, "cuda", exact=True).items()
    names = [*quiet.EXACT, "CUDA_VISIBLE_DEVICES"]
    told = [
        bench.group(1).request_first(dict, "call", function="os:getenv", arguments={"key": name})["returned"]
        for name in names
    ]
    assert told == [*quiet.EXACT.values(), ""]


def huge_kilobytes(environment: dict[str, str]) -> int:
    done = subprocess.run([sys.executable, "-c", FILL], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(
    not HUGE_PAGES.is_file() or "[madvise]" not in HUGE_PAGES.read_text(),
    reason="this kernel gives huge pages always or never, not on request",
)
def test_the_heap_is_in_huge_pages() -> None:
    plain = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    assert huge_kilobytes({**plain, **quiet.ALLOCATOR}) == 0
    assert huge_kilobytes(quiet.environment(plain, "cpu")) > 0


def test_cards_are_numbered_as_nvml_numbers_them() -> None:
    """Whatever the user set: indices, readings and NVML's UUIDs must mean the same card."""
    assert quiet.environment({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "cuda")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
