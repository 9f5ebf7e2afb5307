"""Whether processes keep memory between their windows: with answers of GPUs, and in a session of groups that answer."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from suite.processes.answers import PeakMemory, Timed
from suite.room.devices import Devices
from suite.run.groups import Caches, Groups
from suite.run.session import Session, Sessions
from tests.support.measurements import arm, cell, run_of, settings

GB = 10**9
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


ONE, TWO = [timed((30, 70), (30, 70))], [timed((30, 70)), timed((30, 60))]


@pytest.mark.parametrize(
    ("groups", "fit"),
    [
        ([], False),
        ([[Timed(10**6)]], False),
        ([[Timed(10**6, PeakMemory(resident_bytes=GB))]], False),
        ([[timed((30, 0))]], False),
        ([ONE], True),
        ([ONE, ONE, ONE], True),
        ([ONE, [timed((30, 70)), timed((10, 60))]], True),
        ([ONE, TWO], False),
        ([TWO, [timed((1, 70)), timed((25, 70))]], False),
        ([[timed((10, 70))], [timed((10, 20))]], False),
    ],
    ids=["nothing", "no memory", "a CPU", "unknown", "a process", "its arms", "two groups", "full", "rank 1", "later"],
)
def test_all_caches_must_fit_into_what_every_card_has_free(groups: list[list[Timed]], fit: bool) -> None:
    assert noted(*groups).fit is fit


class Answering:
    """A group of one process on one GPU that gives back so many GB after a window, and notes whether it kept them."""

    def __init__(self, returned: float) -> None:
        self.kept: list[bool] = []
        self.returned = returned

    def request(self, kind: type, command: str, timeout_s: float, **told: Any) -> list[Timed]:
        assert command == "window"
        self.kept.append(told.get("keeps", False))
        return [timed((0 if self.kept[-1] else self.returned, 60))]


class Still:
    """A meter that reads nothing."""

    def worked(self, names: object) -> None: ...

    def read(self) -> None: ...

    def since(self, before: None) -> None: ...


@pytest.mark.parametrize(("of_the_base", "keeps"), [(20, True), (30, False)])
def test_a_session_keeps_memory_where_that_of_all_its_groups_fits(of_the_base: float, keeps: bool) -> None:
    run = run_of(cell(1), config=settings(devices=Devices("cuda", ("cuda:0",), ())))
    arms = {arm(1): Answering(30), arm(1, side="base"): Answering(of_the_base)}
    sessions = Sessions(run, {}, random.Random(1), Still(), lambda: 100.0, lambda line: None)  # type: ignore[arg-type]
    groups = Groups(Session(0), dict(arms))  # type: ignore[arg-type]
    sessions._warm_up(groups, list(arms))
    warming = [len(group.kept) for group in arms.values()]
    sessions._blocks = 2
    sessions._time(groups, [tuple(arms)], time.monotonic())
    for group, windows in zip(arms.values(), warming, strict=True):
        assert group.kept == [False] * windows + [keeps] * 4
