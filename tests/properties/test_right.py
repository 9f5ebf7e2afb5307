"""Unusual right trainers pass; `python -m tests.right` puts many more cases to them: what it draws, keeps and shows."""

from __future__ import annotations

import argparse
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

from docs.evidence.log import ROOT, Line, append, read_log
from suite.checks.bench import Bench
from suite.checks.search import SearchResult
from suite.processes.failure import WorkerFailure
from suite.processes.pool import Pool
from suite.properties import contract
from suite.properties.answers import About, Judgement
from suite.properties.case import Case
from suite.properties.contract import load_trainer
from suite.room import devices
from tests.right import RIGHT
from tests.right import __main__ as campaign
from tests.right.__main__ import SETS, USUAL, checks, fewest, named, table
from tests.support import trainers_under_test


def some_of_each_file() -> Iterator[Any]:
    """Yield all right trainers; those after the first five of their file are nightly."""
    seen = Counter[str]()
    for name, trainer in RIGHT.items():
        file = trainer.partition(":")[0]
        seen[file] += 1
        yield pytest.param(name, marks=[pytest.mark.nightly] if seen[file] > 5 else [])


@pytest.mark.parametrize("name", list(some_of_each_file()))
def test_an_unusual_right_trainer_passes(bench: Bench, name: str) -> None:
    outcome = bench.search(RIGHT[name], "trajectory", examples=2)
    assert not outcome.failure
    assert outcome.examples == 2


def test_every_right_trainer_is_in_the_table() -> None:
    modules = {import_module(trainer.partition(":")[0]) for trainer in RIGHT.values()}
    there = {
        name
        for module in modules
        for name, each in vars(module).items()
        if inspect.isclass(each) and each.__module__ == module.__name__ and hasattr(each, "processes")
    }
    assert there == set(RIGHT)


def test_a_right_trainer_says_what_is_unusual() -> None:
    assert all(inspect.getdoc(load_trainer(trainer)) for trainer in RIGHT.values())
    assert len({inspect.getdoc(load_trainer(trainer)) for trainer in RIGHT.values()}) == len(RIGHT)


@dataclass
class Noting(Bench):
    """Keeps the cases that are drawn, and asks no worker."""

    drawn: list[Case] = field(default_factory=list)
    wrong: bool = False

    def about(self, trainer: str) -> About:
        return About(processes="one", resumes=True)

    def judge(self, trainer: str, check: str, case: Case) -> Judgement:
        self.drawn.append(case)
        return Judgement(f"wrong in {ROOT}/suite" if self.wrong else "")


def noting(**about: Any) -> Noting:
    return Noting(cast(Pool, None), devices.one_host(devices.parse("cpu")), **about)


def drawn(seed: int, examples: int = 20) -> list[Case]:
    bench = noting()
    assert campaign.judge(bench, "single", "gradient", seed, examples).examples == examples
    return bench.drawn


def line(trainer: str, check: str, count: int, finding: str = "") -> Line:
    return {"trainer": trainer, "check": check, "cases": count, "finding": finding, "seed": 7}


def asked(path: Path, **changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"log": path, "wanted": 150, "minutes": 1.0, "mixed": True} | changes)


def test_a_seed_draws_the_same_cases_again_and_another_seed_others() -> None:
    assert drawn(1) == drawn(1)
    assert set(map(str, drawn(1))) != set(map(str, drawn(2)))


def test_the_campaign_goes_on_where_its_log_ends_and_covers_what_has_fewest_blocks(tmp_path: Path) -> None:
    path, bench = tmp_path / "right.jsonl", noting()
    append(path, line("single", "start", 60))
    campaign.fill(bench, USUAL, 50, asked(path))
    lines = read_log(path)
    assert [entry["cases"] for entry in lines] == [60, 50, 50]
    assert len({(entry["trainer"], entry["check"]) for entry in lines}) == 3
    campaign.fill(bench, USUAL, 50, asked(path))
    campaign.fill(bench, USUAL, 50, asked(path, wanted=1000, minutes=0.0))
    assert read_log(path) == lines
    pairs = [line(name, check, 0) for name, checks in USUAL.items() for check in checks]
    assert fewest(pairs[1:], USUAL) == ("single", next(iter(USUAL["single"])))


def test_blocks_of_other_code_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "right.jsonl"
    append(path, {**line("single", "start", 50), "commit": "c1", "trees": ["a", "b"], "dirty": False})
    with pytest.raises(ValueError, match=r"runs of other code|uncommitted changes"):
        campaign.fill(noting(), USUAL, 50, asked(path, mixed=False))


def test_a_finding_is_kept_in_full_without_the_paths_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "right.jsonl"
    campaign.fill(noting(wrong=True), USUAL, 50, asked(path, wanted=1))
    [kept] = read_log(path)
    assert re.match(r".*: wrong in suite\n(  expected: .*\n)?  (smallest )?case( found)?: ", kept["finding"])
    assert str(ROOT) not in kept["finding"]
    assert not kept["crashed"]


def test_a_wrong_trainer_is_a_finding(bench: Bench) -> None:
    outcome = campaign.judge(bench, f"{trainers_under_test.__file__}:MeanOfMeans", "gradient", 1, 10)
    assert "looks like: mean of the shards' means" in outcome.failure


def test_a_trainer_that_cannot_be_asked_is_a_finding() -> None:
    class Gone(Noting):
        def about(self, trainer: str) -> About:
            raise WorkerFailure("bench-1", "its process ended", ["the last lines of its log"])

    outcome = campaign.judge(Gone(cast(Pool, None), noting().devices), "single", "start", 1, 10)
    assert outcome == SearchResult("bench-1: its process ended\nthe last lines of its log", [], 0, crashed=True)


@pytest.mark.parametrize("which", SETS)
def test_every_trainer_is_there_and_can_be_named(which: str) -> None:
    for trainer in SETS[which].checks:
        contract.describe(contract.load_trainer(trainer))
        assert named(trainer, SETS.values())[0] == trainer
        assert named(trainer.rpartition(":")[2], [SETS[which]])[0] == trainer


def test_a_trainer_that_is_in_no_set_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no trainer 'Lyon': expected one of .*Lion"):
        named("Lyon", SETS.values())


def test_a_check_that_compares_nothing_is_not_counted(bench: Bench) -> None:
    joins, lion = (named(name, SETS.values())[0] for name in ("Joins", "Lion"))
    assert checks(bench, joins, ("gradient", "batch_norm")) == ["gradient", "batch_norm"]
    assert checks(bench, lion, ("gradient", "batch_norm")) == ["gradient"]


def test_the_table_counts_by_trainer_and_by_check_and_has_every_alarm_with_its_command() -> None:
    alarm = "Lion, check 'loss': step 0\n  see it again: python -m suite.checks tests:Lion loss '{}'"
    lines = [
        line("tests:Lion", "loss", 20, alarm),
        {**line("tests:Lion", "gradient", 25), "nearest": {"float32": 0.25}},
    ]
    shown = table([*lines, line("tests:Joins", "loss", 25, "no answer\nlong")]).splitlines()
    assert {"| Lion | 45 | 1 |", "| Joins | 25 | 1 |"} < set(shown)
    assert {"| loss | 45 | 2 |  |  |", "| gradient | 25 | 0 |  | 0.25 |", "| all | 70 | 2 |  | 0.25 |"} < set(shown)
    assert shown[-5].startswith("False alarms among 70 cases, with the exact 95 % interval: 2.8571% [")
    assert shown[-4:] == [
        "- Lion, check 'loss': step 0",
        "  `python -m suite.checks tests:Lion loss '{}'`",
        "- no answer",
        "  `python -m tests.right --again tests:Joins loss 7`",
    ]
