"""What is said, and what is refused, before the processes of a first session start in a container."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from suite.processes.jobs import LOADERS, READ_AHEAD
from suite.room.devices import Devices
from suite.run import groups
from suite.run.observations import Observations, Session
from tests.support.containers import Files
from tests.support.measurements import arm, job, run_of, settings

GB = 10**9
ARMS = [arm(2), arm(2, mode="weak"), arm(1), arm(2, "scratch")]


@pytest.fixture
def run() -> Observations:
    """Three groups of processes, of five ranks: the modes of ddp share theirs."""
    of_arms = {each: replace(job(each), processes="per-device") for each in ARMS}
    return run_of(jobs=of_arms)


def test_without_limits_there_is_nothing_to_say(run: Observations, container: Files, tmp_path: Path) -> None:
    assert groups.capacity_lines(run, ARMS, forked=True, shared=tmp_path) == []


def test_all_processes_of_a_session_count_and_modes_share_theirs(run: Observations, container: Files) -> None:
    container.group(memory_max=2 * GB)
    [line] = groups.capacity_lines(run, ARMS, forked=False)
    assert line.startswith("plan: 5 worker(s) take 2.0 GB at least, and this container may use 2.0 GB more of its 2.0")
    container.group(memory_max=10 * GB)
    assert groups.capacity_lines(run, ARMS, forked=True) == []
    container.group(memory_max=2 * GB, memory_current=GB)
    with pytest.raises(ValueError, match=r"memory: 5 worker\(s\) take .*: there is room for 2; raise"):
        groups.capacity_lines(run, ARMS, forked=False)
    [line] = groups.capacity_lines(run, ARMS, forked=True)
    assert line.startswith("plan: 5 worker(s) take 0.1 GB at least, and this container may use 1.0 GB more of its 2.0")


def test_of_several_hosts_this_one_counts(run: Observations, container: Files) -> None:
    two = replace(run.plan, config=settings(devices=Devices("cpu", ("cpu",) * 4, (0, 1), hosts=2)))
    container.group(memory_max=GB)
    [line] = groups.capacity_lines(replace(run, plan=two), ARMS, forked=False)
    assert line.startswith("plan: 2 worker(s) take 0.8 GB")


def test_minibatches_that_do_not_fit_into_shared_memory_are_named(container: Files, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    sample_bytes, samples = 1 << 20, 4
    for part in ("train_X", "train_y", "test_X"):
        with (data / part).open("wb") as file:
            file.truncate(samples * sample_bytes // 2)
    told = job(arm(2))
    dataset = replace(told.dataset, folder=str(data), train_samples=samples)
    free_bytes = shutil.disk_usage(tmp_path).free
    needed = READ_AHEAD * LOADERS["book"] + 1
    for loader, more, lines in (("book", 2, 1), ("book", 0.5, 0), ("resident", 2, 0)):
        batch = int(more * free_bytes / needed / sample_bytes)
        workload = replace(told.workload, loader=loader)
        jobs = {arm(2): replace(told, dataset=dataset, global_batch=batch, workload=workload)}
        found = groups.capacity_lines(run_of(jobs=jobs), list(jobs), forked=True, shared=tmp_path)
        assert len(found) == lines
        needed_mb = batch * needed * sample_bytes / 1e6
        for line in found:
            assert line.startswith(f"plan: the loaders keep {needed_mb:.0f} MB of minibatches in {tmp_path}, where ")
            assert re.search(r' \d+ MB are free: give the container more .*, or use loader = "resident"$', line)


@pytest.mark.parametrize(
    ("number", "starting_s", "scripted", "said"),
    [(0, 59.0, True, False), (0, 75.0, True, True), (1, 75.0, True, False), (0, 75.0, False, False)],
)
def test_a_script_that_takes_a_minute_to_start_says_what_is_left_of_the_budget(
    run: Observations, number: int, starting_s: float, scripted: bool, said: bool
) -> None:
    session = Session(number, "", starting_s=starting_s)
    found = groups.slow_start(run, session, [replace(arm(2), runs_script=scripted)])
    assert found == said * [
        "the scripts took 75 s until their first updates, and every session starts them again: the budget of 120 s has "
        "time for 1 session(s) at most, and a verdict takes 3 or more; choose a larger --scaling-budget, or let the "
        "script load less"
    ]
