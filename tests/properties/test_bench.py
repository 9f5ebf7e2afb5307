"""What the bench asks of its ranks, and when."""

from __future__ import annotations

from typing import Any

import pytest

from suite.checks.bench import HANG_S, Bench
from suite.processes.failure import WorkerFailure
from suite.processes.group import START_TIMEOUT_S
from suite.processes.jobs import CaseJob
from suite.properties.answers import About, Described, Judgement
from suite.properties.case import Case
from suite.room import devices


class Asked:
    """Replaces a pool and its only group."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, str, float]] = []

    def group(self, name: str, size: int, *, spread: bool) -> Asked:
        return self

    def request(self, kind: type, command: str, timeout_s: float = START_TIMEOUT_S, **told: Any) -> list[Any]:
        if command == "describe":
            return [
                Described(versions={}, about=About(processes="one", oracle="sgd", unsynced=False, shares_gpus=True))
            ]
        self.commands.append((command, told["arm"].trainer, timeout_s))
        return [{}]

    def request_first(self, kind: type, command: str, **told: Any) -> Judgement:
        return Judgement("")


def test_every_trainer_is_imported_before_its_first_case_and_its_deadline() -> None:
    asked: Any = Asked()
    bench = Bench(asked, devices.parse("cpu"))
    for trainer in ("one.py:A", "two.py:B", "one.py:A"):
        bench.judge(trainer, "gradient", Case(world_size=1, batches=(1,)))
    first, second = [
        [("bind", trainer, START_TIMEOUT_S), ("observe", trainer, HANG_S)] for trainer in ("one.py:A", "two.py:B")
    ]
    assert asked.commands == [*first, *second, ("observe", "one.py:A", HANG_S)]


def test_ranks_that_cannot_import_a_trainer_say_so_when_they_are_bound(bench: Bench) -> None:
    job = CaseJob(trainer="nowhere:Nothing", processes="one", devices=("cpu:0",), backend="gloo")
    with pytest.raises(WorkerFailure, match=r"'nowhere:Nothing'.*No module named 'nowhere'"):
        bench.group(1).request(dict, "bind", arm=job)
