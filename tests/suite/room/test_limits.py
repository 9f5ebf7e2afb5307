"""The CPU quota of a container, read from folders made as the kernel makes them; descriptors, under real limits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from suite.room.limits import cpu_quota
from tests.support.project import REPOSITORY


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


def test_the_least_quota_above_us_counts(tmp_path: Path, own: Path) -> None:
    own.write_text("0::/pod/job\n")
    group(tmp_path / "pod", cpu_max="150000 100000\n")
    group(tmp_path / "pod" / "job", cpu_max="max 100000\n")
    group(tmp_path / "other", cpu_max="1 100000\n")
    assert cpu_quota(tmp_path, own) == 1.5
    group(tmp_path / "pod" / "job", cpu_max="50000 100000\n")
    assert cpu_quota(tmp_path, own) == 0.5


def test_groups_of_version_1_are_read(tmp_path: Path, own: Path) -> None:
    own.write_text("5:memory:/a\n4:cpu,cpuacct:/a:b\n1:name=systemd:/\n0::/\n")
    group(tmp_path / "cpu" / "a:b", cpu_cfs_quota_us="-1\n", cpu_cfs_period_us="100000\n")
    assert cpu_quota(tmp_path, own) is None
    group(tmp_path / "cpu" / "a:b", cpu_cfs_quota_us="250000\n")
    assert cpu_quota(tmp_path, own) == 2.5


def test_a_group_outside_of_the_mount_is_read_at_its_root(tmp_path: Path, own: Path) -> None:
    own.write_text("0::/../elsewhere\n")
    group(tmp_path, cpu_max="100000 100000\n")
    group(tmp_path.parent / "elsewhere", cpu_max="1 100000\n")
    assert cpu_quota(tmp_path, own) == 1.0


@pytest.mark.parametrize("text", ["", "max", "a b", "1 0", "1 2 3"])
def test_anything_else_is_no_quota(tmp_path: Path, own: Path, text: str) -> None:
    own.write_text("0::/\nnonsense\n")
    group(tmp_path, cpu_max=text)
    group(tmp_path / "cpu", cpu_cfs_quota_us=text, cpu_cfs_period_us=text)
    assert cpu_quota(tmp_path, own) is None


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "none") is None


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
