"""Processes of a session: whether they fit into a container, their first steps on GPUs, and memory that they keep."""

from __future__ import annotations

import random
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from suite.processes.failure import WorkerFailure
from suite.processes.jobs import LOADERS, READ_AHEAD, PeakMemory, Timed
from suite.room.devices import Devices
from suite.room.hardware import Card
from suite.run import groups
from suite.run.blocks import LEAST
from suite.run.groups import Caches, Groups
from suite.run.observations import Observations, Session
from suite.run.session import Next, Sessions
from tests.support.answering import BASE, ONE, OWN, Answering, Still, sessions
from tests.support.containers import Files
from tests.support.measurements import MACHINE, arm, cell, job, run_of, settings


def on_gpus(count: int = 2, **changes: Any) -> Observations:
    """Return a run of the candidate, its base and one device on so many GPUs of 80 GB."""
    devices = Devices("cuda", tuple(f"cuda:{index}" for index in range(count)), ())
    cards = tuple(Card(index=index, name="GPU", id=str(index), memory_bytes=80 * 10**9) for index in range(count))
    jobs = {each: job(each) for each in (OWN, BASE, ONE)}
    machine = MACHINE.model_copy(update={"cards": changes.pop("cards", cards)})
    return run_of(cell(2), config=settings(devices=devices), jobs=jobs, machine=machine, **changes)


def test_first_steps_on_gpus_count_as_a_part_of_every_session_and_not_of_a_window() -> None:
    """They come before the clock of a first window is read. How many blocks there are depends on what a start takes."""

    class Whole(Answering):
        def request(self, kind: type[Any], command: str, *rest: Any, **told: Any) -> list[Any]:
            if kind is Timed:
                return super().request(kind, command, *rest, **told)
            answers = {"parameters": {"not_finite": ""}, "connections": {"transports": ()}}
            return [kind(**answers.get(command, {}))]

    run, told = on_gpus(), list[float]()
    run.block_count = lambda start_s, *_: told.append(start_s) or LEAST  # type: ignore[method-assign]
    measured = sessions(run, Whole({OWN.id: 0.01, BASE.id: 0.01}, cold_s=6.0))
    measured._meter = Still()  # type: ignore[assignment]
    measured.run(Next([(OWN, BASE)]))
    [session] = run.sessions
    assert session.starting_s == pytest.approx(2.5 + 2 * 6.0, abs=0.1)
    assert session.warming_s < 1.0
    assert run.steps[OWN] == 12
    assert told == [pytest.approx(session.starting_s + session.warming_s, abs=1.0)]


class AtOnce(Answering):
    """A group that tells which others take their first steps at the same time."""

    stepping: ClassVar[list[AtOnce]] = []
    waves: ClassVar[list[list[str]]] = []

    def __init__(self, name: str, reserved_bytes: int) -> None:
        super().__init__({})
        self.name, self.reserved_bytes = name, reserved_bytes

    def post(self, command: str, **told: Any) -> None:
        assert (command, told) == ("window", {"name": self.name, "steps": 1})
        self.stepping.append(self)

    def collect(self, kind: type[Any], command: str, timeout_s: float) -> list[Any]:
        if self.stepping:
            self.waves.append([group.name for group in self.stepping])
            self.stepping.clear()
        return [kind(duration_ns=1, memory=PeakMemory(reserved_bytes=(self.reserved_bytes,)))]


@pytest.mark.parametrize(
    ("reserved_gb", "cores", "cards", "waves"),
    [
        (10, 8, None, [1, 2]),
        (30, 8, None, [1, 1, 1]),
        (10, 1, None, [1, 1, 1]),
        (10, 8, (), [1, 1, 1]),
    ],
    ids=["the first alone", "no memory for two", "no core for two", "memory not known"],
)
def test_first_steps_are_taken_at_the_same_time_where_they_have_cores_and_memory(
    reserved_gb: int, cores: int, cards: tuple[()] | None, waves: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one device first, whose batch is the largest; in the next session all three may step at once."""
    monkeypatch.setattr("suite.run.session.available_cores", lambda: range(cores))
    run = on_gpus(**({} if cards is None else {"cards": cards}))
    AtOnce.waves.clear()
    groups = Groups(Session(0), {each: AtOnce(each.id, reserved_gb * 10**9) for each in (OWN, BASE, ONE)})  # type: ignore[misc]
    several = sessions(run, next(iter(groups.by_arm.values())))  # type: ignore[arg-type]
    several._take_first_steps(groups)
    assert [len(wave) for wave in AtOnce.waves] == waves
    assert AtOnce.waves[0] == [ONE.id]
    several._take_first_steps(groups)
    assert [len(wave) for wave in AtOnce.waves[len(waves) :]] == ([3] if waves == [1, 2] else waves)


def test_modes_that_share_processes_take_their_first_steps_one_after_the_other() -> None:
    weak, run = arm(2, mode="weak"), on_gpus()
    run.jobs[weak] = job(weak)
    AtOnce.waves.clear()

    class Both(AtOnce):
        def post(self, command: str, **told: Any) -> None:
            self.name = told["name"]
            super().post(command, **told)

    group = Both("", 1)
    groups = Groups(Session(0), {weak: group, OWN: group})  # type: ignore[dict-item]
    sessions(run, group)._take_first_steps(groups)
    assert sorted(AtOnce.waves) == sorted([[OWN.id], [weak.id]])


def test_a_group_that_fails_in_its_first_step_is_lost_alone() -> None:
    class Fails(AtOnce):
        def collect(self, kind: type[Any], command: str, timeout_s: float) -> list[Any]:
            raise WorkerFailure("group", "rank 0: out of memory")

    AtOnce.waves.clear()
    groups = Groups(Session(0), {OWN: Fails(OWN.id, 1), ONE: AtOnce(ONE.id, 1)})  # type: ignore[dict-item]
    sessions(on_gpus(), groups.by_arm[ONE])._take_first_steps(groups)  # type: ignore[arg-type]
    assert list(groups.by_arm) == [ONE]
    assert groups.session.failures[OWN].cause == "rank 0: out of memory"


def test_ranks_on_cpus_take_no_first_steps_together() -> None:
    """They are pinned to the same cores."""
    group = Answering({OWN.id: 0.01})
    sessions(run_of(cell(2)), group)._take_first_steps(Groups(Session(0), {OWN: group}))  # type: ignore[dict-item]
    assert group.asked == []


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


NAMES = ("cuda:0", "cuda:1")


def timed(*held: tuple[float, float]) -> Timed:
    """Return a process's answer: the GB that it gave back of each of its GPUs, and those that this has free."""
    returned, free = (tuple(round(each * GB) for each in column) for column in zip(*held, strict=True))
    return Timed(10**6, PeakMemory(returned_bytes=returned, free_bytes=free))


def noted(*groups: list[Timed]) -> Caches:
    """Return what these groups' first windows told; the same list twice is the same group."""
    caches = Caches()
    for answers in groups:
        caches.note(answers, NAMES, answers)  # type: ignore[arg-type]
    return caches


A_PROCESS, TWO_RANKS = [timed((30, 70), (30, 70))], [timed((30, 70)), timed((30, 60))]


@pytest.mark.parametrize(
    ("groups", "fit"),
    [
        ([], False),
        ([[Timed(10**6)]], False),
        ([[Timed(10**6, PeakMemory(resident_bytes=GB))]], False),
        ([[timed((30, 0))]], False),
        ([A_PROCESS], True),
        ([A_PROCESS, A_PROCESS, A_PROCESS], True),
        ([A_PROCESS, [timed((30, 70)), timed((10, 60))]], True),
        ([A_PROCESS, TWO_RANKS], False),
        ([TWO_RANKS, [timed((1, 70)), timed((25, 70))]], False),
        ([[timed((10, 70))], [timed((10, 20))]], False),
    ],
    ids=["nothing", "no memory", "a CPU", "unknown", "a process", "its arms", "two groups", "full", "rank 1", "later"],
)
def test_all_caches_must_fit_into_what_every_card_has_free(groups: list[list[Timed]], fit: bool) -> None:
    assert noted(*groups).fit is fit


class GivesBack:
    """A group of one process on one GPU that gives back so many GB after a window, and notes whether it kept them."""

    def __init__(self, returned: float) -> None:
        self.kept: list[bool] = []
        self.returned = returned

    def request(self, kind: type, command: str, timeout_s: float, **told: Any) -> list[Timed]:
        assert command == "window"
        self.kept.append(told.get("keeps", False))
        return [timed((0 if self.kept[-1] else self.returned, 60))]


@pytest.mark.parametrize(("of_the_base", "keeps"), [(20, True), (30, False)])
def test_a_session_keeps_memory_where_that_of_all_its_groups_fits(of_the_base: float, keeps: bool) -> None:
    run = run_of(cell(1), config=settings(devices=Devices("cuda", ("cuda:0",), ())))
    arms = {arm(1): GivesBack(30), arm(1, side="base"): GivesBack(of_the_base)}
    sessions = Sessions(run, {}, random.Random(1), Still(), lambda: 100.0, lambda line: None)  # type: ignore[arg-type]
    groups = Groups(Session(0), dict(arms))  # type: ignore[arg-type]
    sessions._warm_up(groups, list(arms))
    warming = [len(group.kept) for group in arms.values()]
    sessions._blocks = 2
    sessions._time(groups, [tuple(arms)], time.monotonic())
    for group, windows in zip(arms.values(), warming, strict=True):
        assert group.kept == [False] * windows + [keeps] * 4
