"""Every mutant is killed by the check that its file names, and every check kills one (`python -m tests.mutants`).

What their failures look like is scored by what their files say (`python -m tests.mutants.diagnoses`).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from suite.checks import draw
from suite.checks.bench import Bench
from suite.checks.functions import search
from suite.checks.search import SearchResult
from suite.properties import suspects
from tests.mutants import Entry, entries
from tests.mutants.__main__ import EVERY
from tests.mutants.diagnoses import BETWEEN, is_right, kind, suspects_of, table
from tests.support.project import REPOSITORY

MUTANTS = entries()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Entry, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant.crashes:  # a mutant that hangs takes as long as the deadline
        monkeypatch.setattr("suite.checks.bench.HANG_S", 3.0)
    if mutant.kind == "trainer":
        result = bench.search(mutant.trainer, mutant.killed_by, shrink=False)
        assert mutant.killed(result), result.failure
    else:
        assert search(mutant.killed_by, mutant.function()).finding


@pytest.mark.nightly
def test_a_gradient_larger_than_a_bucket_is_found_in_low_precision_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suite.checks.bench.CONFIRMATIONS", 0)  # other variants would take four times as long
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == "gradient_larger_than_the_bucket"]
    [case] = draw.fixed("low_precision", 2, "samples")
    assert "of rank 1 differs from rank 0's" in bench.judge(mutant.trainer, "low_precision", case).finding


def test_the_page_counts_the_mutants_that_each_check_finds() -> None:
    """The counts are those of a whole table; here at least as many as name the check, and no more than there are."""
    page = (REPOSITORY / "docs" / "correctness.md").read_text(encoding="utf-8")
    told = " ".join(page.split())
    kinds = Counter(mutant.kind == "trainer" for mutant in MUTANTS)
    assert f"has {len(MUTANTS)} known bugs" in told
    assert f"says how many of the {kinds[True]} wrong trainers among the" in told
    assert f"says how many of the {kinds[False]} wrong functions among the" in told
    found = {check: int(count) for check, count in re.findall(r"^\| `(\w+)` \| .* \| (\d+) \|$", page, re.MULTILINE)}
    assert set(found) == set(EVERY)
    for check, named in Counter(mutant.killed_by for mutant in MUTANTS).items():
        assert named <= found[check] <= kinds[check in draw.CHECKS], check


@pytest.mark.parametrize(
    ("result", "crashes", "killed"),
    [
        (SearchResult("the gradient is off", [], 1), "", True),
        (SearchResult("", [], 1), "", False),
        (SearchResult("the trainer raised: RuntimeError", [], 1, crashed=True), "", False),
        (SearchResult("the trainer raised: RuntimeError", [], 1, crashed=True), "no answer", False),
        (SearchResult("no answer to 'observe'", [], 1, crashed=True), "no answer", True),
    ],
)
def test_a_crash_kills_only_where_the_file_says_so(result: SearchResult, crashes: str, killed: bool) -> None:
    assert Entry("", "trainer", "gradient", "", "", crashes).killed(result) is killed


def test_a_mutants_file_has_the_bug_and_its_source() -> None:
    assert [mutant.name for mutant in MUTANTS if not mutant.bug.endswith(".") or not mutant.source] == []


def test_every_check_kills_a_mutant() -> None:
    assert {mutant.killed_by for mutant in MUTANTS} == set(EVERY)


def test_a_failure_before_the_first_step_is_explained_too(bench: Bench) -> None:
    result = bench.search("tests.mutants.missing_initial_broadcast:Mutant", "start", examples=3)
    assert "looks like: no broadcast at the start" in result.failure


FACTOR = "2 times the right gradient: the learning rate or the average is off by that factor"


def line(name: str, *named: str, check: str = "gradient", oracle: str = "sgd") -> dict[str, Any]:
    return {"name": name, "oracle": oracle, "check": check, "found": True, "failure": "wrong", "suspects": list(named)}


def test_every_mutant_of_a_trainer_says_what_it_looks_like() -> None:
    files = {entry.name: REPOSITORY / "tests" / "mutants" / f"{entry.name}.py" for entry in entries()}
    for entry in entries():
        declared = re.search(r"^LOOKS_LIKE = ", files[entry.name].read_text(encoding="utf-8"), re.MULTILINE)
        assert bool(declared) is (entry.kind == "trainer"), entry.name
        assert all(phrase == phrase.strip() != "" for phrase in entry.looks_like.split(BETWEEN)) or not entry.looks_like


def test_the_lines_of_a_failure_are_found() -> None:
    assert suspects_of(f"off\n  looks like: {FACTOR}\n  looks like: b\n  smallest case found: c") == [FACTOR, "b"]
    assert suspects_of("off\n  smallest case found: c") == []


@pytest.mark.parametrize(
    ("suspect", "shown"),
    [
        (FACTOR, "N times the right gradient"),
        ("1.5e-05 times the right gradient: Adam divides", "N times the right gradient"),
        (
            "the right gradient plus 0.01 times the parameters: weight decay",
            "the right gradient plus N times the parameters",
        ),
        ("a missing exchange", "a missing exchange"),
        ("the error of 16 bits (bfloat16 or float16): the trainer computes", "the error of 16 bits"),
    ],
)
def test_a_kind_of_suspect_has_no_figures(suspect: str, shown: str) -> None:
    assert kind(suspect) == shown


def test_a_suspect_is_right_by_one_of_the_phrases() -> None:
    wrong = line("a", FACTOR)
    assert is_right(FACTOR, "weight decay | times the right gradient", wrong, [wrong])
    assert not is_right(FACTOR, "weight decay", wrong, [wrong])
    assert not is_right(FACTOR, "", wrong, [wrong])


def test_what_follows_from_another_failure_is_right_where_there_is_one() -> None:
    suspect = "the weights are wrong since an earlier step, and so is the loss: see the check `trajectory`"
    loss, trajectory = line("a", suspect, check="loss"), line("a", check="trajectory")
    assert is_right(suspect, "", loss, [loss, trajectory])
    assert not is_right(suspect, "", loss, [loss, {**trajectory, "found": False}])
    assert not is_right(suspect, "", loss, [loss, {**trajectory, "oracle": "self"}])


def test_the_table_marks_a_line_that_is_wrong_in_more_than_one_of_ten_cases() -> None:
    right = [line("sum_instead_of_mean", FACTOR) for _ in range(9)]
    shown = table([*right, line("muon_of_a_shard", FACTOR)])
    assert "| N times the right gradient | sgd | 10 | 9 | 1 | muon_of_a_shard (1) |" in shown
    assert "**" not in shown
    shown = table([*right[:8], line("muon_of_a_shard", FACTOR), line("frozen_parameters_trained", suspects.NONE_FITS)])
    assert "| N times the right gradient | sgd | 9 | 8 | **1** | muon_of_a_shard (1) |" in shown
    assert "| sgd | 10 | 8 | 1 | 1 | 1 |" in shown
