"""CPU quota and memory of a container, from files in the kernel's form; descriptors, under real limits.

Real control groups are in tests/processes/test_containers.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from suite.room import limits
from suite.room.limits import Memory, cpu_quota, ended_for_memory, memory, threads, usable_cores
from suite.room.quiet import available_cores
from tests.support.containers import Files
from tests.support.project import REPOSITORY


def test_the_least_quota_above_us_counts(container: Files) -> None:
    container.own("0::/pod/job\n").group("pod", cpu_max="150000 100000").group("pod/job", cpu_max="max 100000")
    container.group("other", cpu_max="1 100000")
    assert cpu_quota() == 1.5
    container.group("pod/job", cpu_max="50000 100000")
    assert cpu_quota() == 0.5


def test_groups_of_version_1_are_read(container: Files) -> None:
    container.own("5:memory:/a\n4:cpu,cpuacct:/a:b\n1:name=systemd:/\n0::/\n")
    container.group("cpu/a:b", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100000)
    assert cpu_quota() is None
    container.group("cpu/a:b", cpu_cfs_quota_us=250000)
    assert cpu_quota() == 2.5


def test_a_group_outside_of_the_mount_is_read_at_its_root(container: Files) -> None:
    container.own("0::/../elsewhere\n").group(cpu_max="100000 100000")
    container.group("../elsewhere", cpu_max="1 100000")
    assert cpu_quota() == 1.0


@pytest.mark.parametrize("text", ["", "max", "a b", "1 0", "1 2 3"])
def test_anything_else_is_no_quota(container: Files, text: str) -> None:
    container.own("0::/\nnonsense\n").group(cpu_max=text)
    container.group("cpu", cpu_cfs_quota_us=text, cpu_cfs_period_us=text)
    assert cpu_quota() is None


def test_without_control_groups_nothing_is_limited(container: Files) -> None:
    container.own("")
    assert (cpu_quota(), memory(), ended_for_memory(), usable_cores()) == (None, None, 0, len(available_cores()))


@pytest.mark.parametrize(("quota", "usable"), [("10000", 1), ("100000", 1), ("199999", 1), ("max", None)])
def test_whole_cores_of_a_quota_can_be_used_and_always_one(container: Files, quota: str, usable: int | None) -> None:
    container.group(cpu_max=f"{quota} 100000")
    assert usable_cores() == (usable or len(available_cores()))


def test_ranks_share_the_threads_of_a_quota(container: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_cores", lambda: list(range(64)))
    assert threads(2) is None
    container.group(cpu_max="800000 100000")
    assert [threads(ranks) for ranks in (1, 2, 3, 16)] == [8, 4, 2, 1]
    container.group(cpu_max="6400000 100000")
    assert threads(2) is None


GB = 10**9


def test_the_group_with_the_least_memory_left_counts_and_pages_of_files_are_left(container: Files) -> None:
    container.own("0::/pod/job\n").group("pod", memory_max=8 * GB, memory_current=7 * GB)
    container.group("pod", memory_stat=f"anon 1\nfile {6 * GB}\nactive_file {GB}\ninactive_file {3 * GB}")
    container.group("pod/job", memory_max="max", memory_current=2 * GB)
    assert memory() == Memory(8 * GB, 5 * GB)
    container.group("pod/job", memory_max=4 * GB)
    assert memory() == Memory(4 * GB, 2 * GB)
    container.group("pod/job", memory_high=3 * GB)
    assert memory() == Memory(3 * GB, GB), "above it the kernel holds every process up"
    container.group("pod", memory_current=20 * GB)
    assert memory() == Memory(8 * GB, 0)


def test_a_group_whose_processes_end_together_says_so(container: Files) -> None:
    container.group(memory_max=GB, memory_oom_group=0)
    assert memory() == Memory(GB, GB)
    container.group(memory_oom_group=1)
    assert memory() == Memory(GB, GB, ends_all=True)


def test_memory_of_version_1_is_read_with_all_below(container: Files) -> None:
    container.own("4:memory:/docker/1\n0::/\n").group("memory", memory_limit_in_bytes=2**63 - 4096)
    container.group("memory", memory_usage_in_bytes=5 * GB)
    assert memory() is None
    stat = f"inactive_file 1\nactive_file 1\ntotal_inactive_file {GB}\ntotal_active_file {GB}\n"
    container.group("memory/docker/1", memory_limit_in_bytes=4 * GB, memory_usage_in_bytes=3 * GB, memory_stat=stat)
    assert memory() == Memory(4 * GB, 3 * GB)


@pytest.mark.parametrize("text", ["", "max", "-1", "1 2", "much"])
def test_anything_else_is_no_limit_of_memory(container: Files, text: str) -> None:
    container.group(memory_max=text, memory_current=text, memory_stat=text)
    assert memory() is None


@pytest.mark.parametrize(
    ("own", "group", "file"),
    [("0::/\n", "", "memory_events"), ("4:memory:/\n", "memory", "memory_oom_control")],
    ids=["version 2", "version 1"],
)
def test_processes_that_the_kernel_ended_are_counted(container: Files, own: str, group: str, file: str) -> None:
    container.own(own).group(group, **{file: "oom 7\noom_kill 3\noom_group_kill 0"})
    assert ended_for_memory() == 3


OPENING = """\
import json, os, resource, subprocess, sys
from suite.room.limits import allow_descriptors

show = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
with allow_descriptors(100):
    child = subprocess.run([sys.executable, "-S", "-c", show], capture_output=True, text=True, check=True).stdout
    copies = [os.dup(0) for _ in range(100)]
print(json.dumps([*map(int, child.split()), *resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""
GATE = ("-m", "pytest", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling", "-m", "scaling")
RANKS_64 = ("--scaling-devices=cpu:64", "--scaling-world-sizes=64", "--scaling-mode=strong")


class TestDescriptors:
    """In processes whose limits are low."""

    def limited(self, limits: str, *arguments: str, cwd: Path) -> str:
        """Return what Python prints where a shell has set `limits`."""
        told = ["sh", "-c", f'{limits} && exec "$@"', "sh", sys.executable, *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "GITHUB"))}
        environment["PYTHONPATH"] = str(REPOSITORY)
        return subprocess.run(told, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60).stdout

    def test_soft_limit_is_raised_as_far_as_needed_for_children_too_and_set_back(self, tmp_path: Path) -> None:
        said = self.limited("ulimit -Sn 32 && ulimit -Hn 4096", "-c", OPENING, cwd=tmp_path)
        of_child, *others = json.loads(said)
        assert 100 < of_child < 132
        assert others == [4096, 32, 4096]

    def test_limit_that_is_high_enough_is_left_alone(self, tmp_path: Path) -> None:
        assert json.loads(self.limited("ulimit -n 200", "-c", OPENING, cwd=tmp_path)) == [200] * 4

    def test_run_that_needs_more_than_the_hard_limit_ends_before_it_measures(self, tmp_path: Path) -> None:
        said = self.limited("ulimit -n 60", *GATE, *RANKS_64, "-p", "no:cacheprovider", cwd=tmp_path)
        [more, remedy] = re.findall(
            r"ERROR: descriptors: this run needs up to (\d+), and the hard limit of open files \(ulimit -Hn\) is 60; "
            r"raise it \(as root, `ulimit -n (\d+)` in the shell that starts pytest\), or select fewer cells",
            said,
        )[0]
        assert int(more) == int(remedy) > 64
        assert not list(tmp_path.glob("reports/*/runs"))


def test_without_a_limit_everything_fits(container: Files) -> None:
    assert limits.lacking(10_000) == limits.tight(10_000) == ""


def test_a_refusal_says_how_many_fit_and_what_to_do(container: Files) -> None:
    container.group(memory_max=4 * GB, memory_current=GB)
    assert limits.lacking(7) == ""
    assert limits.lacking(8) == (
        "memory: 8 worker(s) take 3.2 GB at least, and this container may use 3.0 GB more of its 4.0 GB: there is room "
        "for 7; raise the container's memory limit, or choose fewer devices (--scaling-devices), world sizes "
        "(--scaling-world-sizes), trainers or workloads"
    )
    assert limits.lacking(120, forked=True) == ""
    assert "take 3.0 GB at least" in limits.lacking(121, forked=True)


def test_where_memory_may_get_short_a_sentence_says_so(container: Files) -> None:
    container.group(memory_max=4 * GB, memory_current=GB)
    assert limits.tight(1) == ""
    said = (
        "2 worker(s) take 0.8 GB at least, and this container may use 3.0 GB more of its 4.0 GB; what GPUs, models and "
        "data take comes on top"
    )
    assert limits.tight(2) == said
    assert limits.tight(9, forked=True) == ""
    assert limits.tight(10, forked=True).startswith("10 worker(s) take 0.2 GB at least, and this container may use")
    container.group(memory_oom_group=1)
    assert limits.tight(2) == f"{said}; where they need more, the kernel ends pytest, too (memory.oom.group)"


@pytest.mark.parametrize(("left", "count"), [(100 * GB, 4), (2 * GB, 2), (GB, 1), (0, 1)])
def test_templates_take_half_of_the_memory_at_most(
    container: Files, monkeypatch: pytest.MonkeyPatch, left: int, count: int
) -> None:
    monkeypatch.setattr(limits, "available_cores", lambda: list(range(8)))
    container.group(memory_max=left)
    assert limits.templates() == count


def test_templates_load_one_a_core_of_the_quota(container: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_cores", lambda: list(range(8)))
    assert limits.templates() == limits.MOST_TEMPLATES
    container.group(cpu_max="300000 100000")
    assert limits.templates() == 3
