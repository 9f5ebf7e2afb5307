"""The first steps of processes on GPUs, which are taken at the same time and are a part of every session."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from suite.processes.answers import PeakMemory, Timed
from suite.processes.failure import WorkerFailure
from suite.room.devices import Devices
from suite.room.hardware import Card
from suite.run.blocks import LEAST
from suite.run.observations import Observations, Session
from suite.run.session import Groups
from tests.support.answering import BASE, ONE, OWN, Answering, Still, sessions
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
    measured.run([(OWN, BASE)])
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
