"""Every mutant is killed by the check that its file names, and every check kills one (`python -m tests.mutants`)."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from suite.checks import draw
from suite.checks.bench import Bench
from suite.checks.functions import search
from suite.checks.search import SearchResult
from tests.mutants import Entry, entries
from tests.mutants.__main__ import EVERY
from tests.support.project import REPOSITORY

MUTANTS = entries()
by_name = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@by_name
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
    [case] = draw.fixed("low_precision", 2, "sgd", "samples")
    assert "of rank 1 differs from rank 0's" in bench.judge(mutant.trainer, "low_precision", case).finding


def test_the_page_counts_the_mutants_that_each_check_finds() -> None:
    """The counts are those of a whole table; here at least as many as name the check, and no more than there are."""
    page = (REPOSITORY / "docs" / "correctness.md").read_text(encoding="utf-8")
    kinds = Counter(mutant.kind == "trainer" for mutant in MUTANTS)
    assert f"has {len(MUTANTS)} known bugs" in " ".join(page.split())
    assert f"that a check finds, of {kinds[True]}." in page
    assert f"counts mutants, of {kinds[False]}." in page
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


@by_name
def test_a_mutants_file_has_the_bug_and_its_source(mutant: Entry) -> None:
    assert mutant.bug.endswith(".")
    assert mutant.source


def test_every_check_kills_a_mutant() -> None:
    assert {mutant.killed_by for mutant in MUTANTS} == set(EVERY)


def test_a_failure_before_the_first_step_is_explained_too(bench: Bench) -> None:
    result = bench.search("tests.mutants.missing_initial_broadcast:Mutant", "start", examples=3)
    assert "looks like: no broadcast at the start" in result.failure
