"""Readings of the machine with real processes, and the conditions between two readings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from suite.checks.bench import Bench
from suite.room.conditions import disturbed
from suite.room.devices import parse
from suite.room.gpus import GpuReading
from suite.room.meter import Frequency, Meter, Reading, Used, between, used_on
from suite.room.quiet import available_cores
from tests.support.containers import on_cores
from tests.support.processes import BURN, HOSTILE_NAME, RENAMED, running, wait_for_use
from tests.support.project import needs_two_cores


def reading(at_s: float, busy_s: float, own_s: dict[int, float] | None = None, **more: object) -> Reading:
    return replace(Reading(at_s=at_s, busy_s=busy_s, own_s=own_s or {}, load=0.0), **more)  # type: ignore[arg-type]


@pytest.fixture
def cpu_meter() -> Iterator[Meter]:
    with Meter(parse("cpu")) as taken:
        yield taken


def test_work_of_other_processes_is_foreign_and_a_workers_is_not(cpu_meter: Meter) -> None:
    """Two readings are judged twice: the busy process is a worker of ours, then it is not."""
    with running("-c", BURN) as busy:
        cpu_meter.watch([busy.pid])
        before = cpu_meter.read()
        wait_for_use(busy.pid)
        after = cpu_meter.read()
    ours = between(before, after)
    strangers = between(replace(before, own_s={}), replace(after, own_s={}))
    used_s = after.own_s[busy.pid] - before.own_s[busy.pid]
    assert used_s >= 0.29
    assert ours.foreign is not None
    assert strangers.foreign is not None
    # `foreign` differs by what the process used, except for what rounding may have taken below zero.
    assert strangers.foreign >= used_s / strangers.elapsed_s - ours.resolution
    assert ours.foreign <= strangers.foreign - used_s / strangers.elapsed_s + ours.resolution
    assert "other processes used" in disturbed(strangers.model_copy(update={"steal": 0.0}))


@pytest.mark.skipif(sys.platform != "linux", reason="names are set with prctl")
def test_a_hostile_process_name_does_not_change_what_is_read() -> None:
    with running("-c", RENAMED) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        with Meter(parse("cpu")) as taken:
            taken.watch([busy.pid])
            before = taken.read()
            assert Path(f"/proc/{busy.pid}/comm").read_text() == HOSTILE_NAME + "\n"
            wait_for_use(busy.pid)
            after = taken.read()
    assert after.own_s[busy.pid] - before.own_s[busy.pid] >= 0.29


def test_real_workers_and_their_launcher_are_ours(bench: Bench, cpu_meter: Meter) -> None:
    group = bench.group(2)
    group.wait_connected()
    cpu_meter.watch()
    assert {os.getpid(), psutil.Process(group.pids[0]).ppid(), *group.pids.values()} <= cpu_meter.read().own_s.keys()


def test_a_worker_that_ends_makes_the_foreign_use_of_its_block_unknown(cpu_meter: Meter) -> None:
    with running("-c", BURN) as busy:
        cpu_meter.watch([os.getpid(), busy.pid])
        before = cpu_meter.read()
    assert cpu_meter.since(before).foreign is None
    assert cpu_meter.since(cpu_meter.read()).foreign is not None
    cpu_meter.watch([busy.pid])
    assert cpu_meter.read().own_s == {}


def test_shares_are_of_one_core() -> None:
    """In two seconds three core-seconds are used, two of them by ours, and half a one is stolen."""
    before = reading(10.0, 100.0, {1: 5.0, 2: 7.0, 3: 1.0}, steal_s=4.0)
    after = reading(12.0, 103.0, {1: 6.5, 2: 7.5, 3: 1.0}, steal_s=4.5)
    conditions = between(before, after)
    assert (conditions.elapsed_s, conditions.foreign, conditions.steal) == (2.0, 0.5, 0.25)
    assert between(replace(before, steal_s=None), replace(after, steal_s=None)).steal is None
    assert conditions.resolution == pytest.approx(3 * 0.01 * (7 / 6) ** 0.5 / 2, abs=1e-4)  # two of the three were busy


def test_an_idle_machine_is_not_disturbed() -> None:
    before = reading(0.0, 100.0, {1: 5.0, 2: 5.0, 3: 5.0}, steal_s=1.0)
    after = reading(0.5, 101.02, {1: 5.49, 2: 5.48, 3: 5.02}, steal_s=1.0)
    assert disturbed(between(before, after)) == ""
    assert disturbed(between(before, replace(after, busy_s=101.2))) == "other processes used 42% of a core"


STAT = """\
cpu  1000 10 300 9000 50 5 6 70 0 0
cpu0 400 4 100 3000 20 2 2 30 0 0
cpu2 500 5 150 3000 20 2 2 30 0 0
cpu7 100 1 50 3000 10 1 2 10 0 0
intr 12345 0 9
ctxt 1
"""


@pytest.mark.parametrize(
    ("cores", "used"),
    [
        ({2}, Used(6.55, 0.3, 1)),
        ({0, 7}, Used(6.55, 0.4, 2)),
        ({0, 2, 7}, Used(13.1, 0.7, 1)),
        ({0, 2, 3}, Used(13.1, 0.7, 1)),
    ],
    ids=["one", "some", "all of them have a sum", "of one the kernel shows nothing"],
)
def test_the_cores_of_a_container_are_read_one_by_one(cores: set[int], used: Used, tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(STAT)
    assert used_on(cores, tmp_path / "stat") == pytest.approx(used)


def test_without_that_file_all_cores_are_read(tmp_path: Path) -> None:
    assert used_on({0}, tmp_path / "none").busy_s > 0


@needs_two_cores
def test_work_on_cores_that_are_not_ours_is_nobodys() -> None:
    """Two readings of the kernel bound what is read between them, whatever else the machine does."""
    mine, theirs = available_cores()[:2]
    with on_cores({mine}), Meter(parse("cpu:1")) as taken, running("-c", BURN) as busy:
        os.sched_setaffinity(busy.pid, {theirs})
        outer = psutil.cpu_times(percpu=True)[mine]
        before = taken.read()
        wait_for_use(busy.pid)
        after = taken.read()
        grown = psutil.cpu_times(percpu=True)[mine]
    most_s = grown.user + grown.nice + grown.system - outer.user - outer.nice - outer.system
    assert after.busy_s - before.busy_s <= most_s + 1e-6
    assert (after.cores, after.counters) == (1, 1)
    assert taken.since(before).cores == 1


def test_counters_of_single_cores_are_rounded_one_by_one() -> None:
    before, after = reading(0.0, 1.0, cores=8, counters=8), reading(1.0, 1.0, cores=8, counters=8)
    assert between(before, after).resolution == pytest.approx(3 * 0.01 * (3 * 8 / 6) ** 0.5, abs=1e-4)
    assert between(before, replace(after, cores=64)).cores == 64


def test_counters_that_rounding_turns_back_count_as_zero() -> None:
    conditions = between(reading(0.0, 1.0, {1: 0.0}, steal_s=1.0), reading(0.0, 1.0, {1: 0.02}, steal_s=0.99))
    assert (conditions.elapsed_s, conditions.foreign, conditions.steal) == (0.01, 0.0, 0.0)


def test_a_gpu_process_that_came_is_a_newcomer_and_ours_is_not() -> None:
    before = reading(0.0, 1.0, gpus=(GpuReading(0, processes=((7, 1),)),))
    after = reading(1.0, 1.0, gpus=(GpuReading(0, processes=((7, 1), (8, 1), (9, None))),), known=frozenset({7, 9}))
    [gpu] = between(before, after).gpus
    assert gpu.newcomers == (8,)


def test_the_slowest_core_in_use_counts(tmp_path: Path) -> None:
    for core, khz in enumerate(("3500000\n", "2100500\n", "800000\n")):
        folder = tmp_path / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(khz)
    assert Frequency([0, 1], tmp_path, tmp_path / "none").slowest_mhz() == 2100.5
    (tmp_path / "cpu0" / "cpufreq" / "scaling_cur_freq").write_text("<unknown>\n")
    assert Frequency([0, 1], tmp_path, tmp_path / "none").slowest_mhz() is None


@pytest.mark.parametrize(
    ("cores", "cpuinfo", "mhz"),
    [
        ([0], "model name\t: X cpu MHz : 1\ncpu MHz\t\t: 2596.120\n\ncpu MHz\t\t: 2400\ncpu MHz\t\t: fast\n", 2400),
        ([], "cpu MHz\t\t: 2400\n", None),
        ([0], "Features : fp asimd\n", None),
        ([0], None, None),
    ],
    ids=["slowest", "no rank is bound to a core", "no frequency", "no file"],
)
def test_cpuinfo_is_read_where_no_driver_shows_frequencies(
    cores: list[int], cpuinfo: str | None, mhz: float | None, tmp_path: Path
) -> None:
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert Frequency(cores, tmp_path, tmp_path / "cpuinfo").slowest_mhz() == mhz
