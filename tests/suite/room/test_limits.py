"""The CPU quota of a container, read from folders made as the kernel makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.room.limits import cpu_quota


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
