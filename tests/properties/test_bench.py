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
    """Replaces a pool and its only group.

    Args:
        findings: of the judgements, in order; later ones are right.
    """

    def __init__(self, *findings: str) -> None:
        self.commands: list[tuple[str, str, float]] = []
        self.findings = list(findings)
        self.judged: list[tuple[int, int]] = []  # the variant that k devices computed, and how many one device did

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
        self.judged.append((told["case"].get("variant", 0), told["variants"]))
        return Judgement(self.findings.pop(0) if self.findings else "")


def test_every_trainer_is_imported_before_its_first_case_and_its_deadline() -> None:
    asked: Any = Asked()
    bench = Bench(asked, devices.parse("cpu"))
    for trainer in ("one.py:A", "two.py:B", "one.py:A"):
        bench.judge(trainer, "gradient", Case(world_size=1, batches=(1,)))
    first, second = [
        [("bind", trainer, START_TIMEOUT_S), ("observe", trainer, HANG_S)] for trainer in ("one.py:A", "two.py:B")
    ]
    assert asked.commands == [*first, *second, ("observe", "one.py:A", HANG_S)]


@pytest.mark.parametrize(
    ("findings", "judged", "finding"),
    [
        ([], [(0, 2)], ""),
        (["off"], [(0, 2), (0, 8)], ""),
        (["off", "far off"], [(0, 2), (0, 8), (9, 8)], ""),
        (["off", "off", "off", "off", "still off"], [(0, 2), (0, 8), (9, 8), (10, 8), (11, 8)], "still off"),
    ],
)
def test_in_low_precision_a_finding_must_be_there_in_every_variant(
    findings: list[str], judged: list[tuple[int, int]], finding: str
) -> None:
    asked: Any = Asked(*findings)
    judgement = Bench(asked, devices.parse("cpu")).judge("one.py:A", "low_precision", Case(2, (3,), dtype="bfloat16"))
    assert asked.judged == judged
    assert judgement.finding == finding


def test_ranks_that_cannot_import_a_trainer_say_so_when_they_are_bound(bench: Bench) -> None:
    job = CaseJob(trainer="nowhere:Nothing", processes="one", devices=("cpu:0",), backend="gloo")
    with pytest.raises(WorkerFailure, match=r"'nowhere:Nothing'.*No module named 'nowhere'"):
        bench.group(1).request(dict, "bind", arm=job)
