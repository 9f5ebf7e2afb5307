"""The script that puts fresh cases to right trainers: what it draws, keeps and shows."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from docs.evidence import cases
from docs.evidence.log import ROOT, Line, append, read_log
from suite.checks.bench import Bench
from suite.checks.search import SearchResult
from suite.processes.failure import WorkerFailure
from suite.processes.pool import Pool
from suite.properties import contract
from suite.properties.answers import About, Judgement
from suite.properties.case import Case
from suite.room import devices
from tests.support import trainers_under_test


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
    assert cases.judge(bench, "single", "gradient", seed, examples).examples == examples
    return bench.drawn


def line(trainer: str, check: str, count: int, finding: str = "") -> Line:
    return {"trainer": trainer, "check": check, "cases": count, "finding": finding, "seed": 7}


def asked(path: Path, **changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"log": path, "wanted": 150, "minutes": 1.0, "mixed": True, "check": None} | changes)


def test_a_seed_draws_the_same_cases_again_and_another_seed_others() -> None:
    assert drawn(1) == drawn(1)
    assert set(map(str, drawn(1))) != set(map(str, drawn(2)))


def test_the_script_goes_on_where_the_log_ends_and_covers_what_has_fewest_blocks(tmp_path: Path) -> None:
    path, bench = tmp_path / "cases.jsonl", noting()
    append(path, line("single", "start", 60))
    cases.make(bench, tmp_path, asked(path))
    lines = read_log(path)
    assert [entry["cases"] for entry in lines] == [60, 50, 50]
    assert len({(entry["trainer"], entry["check"]) for entry in lines}) == 3
    cases.make(bench, tmp_path, asked(path))
    cases.make(bench, tmp_path, asked(path, wanted=1000, minutes=0.0))
    assert read_log(path) == lines
    pairs = [line(name, check, 0) for name, checks in cases.RIGHT.items() for check in checks]
    assert cases.fewest(pairs[1:], cases.RIGHT) == ("single", "start")


def test_one_check_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    cases.make(noting(), tmp_path, asked(path, check="start"))
    assert {entry["check"] for entry in read_log(path)} == {"start"}


def test_blocks_of_other_code_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    append(path, {**line("single", "start", 50), "commit": "c1", "trees": ["a", "b"], "dirty": False})
    with pytest.raises(ValueError, match=r"runs of other code|uncommitted changes"):
        cases.make(noting(), tmp_path, asked(path, mixed=False))


def test_a_finding_is_kept_in_full_without_the_paths_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    cases.make(noting(wrong=True), tmp_path, asked(path, wanted=1))
    [kept] = read_log(path)
    assert re.match(r".*: wrong in suite\n(  expected: .*\n)?  (smallest )?case( found)?: ", kept["finding"])
    assert str(ROOT) not in kept["finding"]
    assert not kept["crashed"]


def test_a_wrong_trainer_is_a_finding(bench: Bench) -> None:
    outcome = cases.judge(bench, f"{trainers_under_test.__file__}:MeanOfMeans", "gradient", 1, 10)
    assert "looks like: mean of the shards' means" in outcome.failure


def test_a_trainer_that_cannot_be_asked_is_a_finding() -> None:
    class Gone(Noting):
        def about(self, trainer: str) -> About:
            raise WorkerFailure("bench-1", "its process ended", ["the last lines of its log"])

    outcome = cases.judge(Gone(cast(Pool, None), noting().devices), "single", "start", 1)
    assert outcome == SearchResult("bench-1: its process ended\nthe last lines of its log", [], 0, crashed=True)


def test_every_trainer_is_there(tmp_path: Path) -> None:
    for name in cases.RIGHT:
        contract.describe(contract.load_trainer(cases.loadable(name, tmp_path)))


def test_the_table_counts_cases_and_shows_false_alarms() -> None:
    lines = [line("ddp", "start", 50), line("ddp", "start", 40), line(f"{cases.STEPS}Muon", "loss", 10, "wrong\nlong")]
    shown = cases.table(lines).splitlines()
    assert shown[2:5] == ["| ddp | 90 |  | 90 | 0 |", "| Muon |  | 10 | 10 | 1 |", "| all | 90 | 10 | 100 | 1 |"]
    assert shown[-2:] == [
        "False alarms among 100 cases, with the exact 95 % interval: 1.000% [0.025%, 5.446%].",
        "- wrong (seed 7)",
    ]


def test_the_page_shows_the_table_of_the_log() -> None:
    assert cases.table(read_log(cases.LOG)) in (ROOT / "docs" / "correctness.md").read_text(encoding="utf-8")
