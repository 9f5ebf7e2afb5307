"""The allocator settings of a worker's environment, and their effect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.room import quiet

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


def test_backends_use_loopback_unless_the_user_names_an_interface() -> None:
    plain = quiet.environment({}, "cuda")
    assert plain["GLOO_SOCKET_IFNAME"] == plain["NCCL_SOCKET_IFNAME"] == ("lo" if sys.platform == "linux" else "lo0")
    assert quiet.environment({"NCCL_SOCKET_IFNAME": "eth0"}, "cuda")["NCCL_SOCKET_IFNAME"] == "eth0"


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
