"""Every mutant is killed by the check that its file names, and every check kills one (`python -m tests.mutants`)."""

from __future__ import annotations

import pytest

from suite.checks.bench import Bench, Outcome
from suite.checks.draw import CHECKS
from tests.mutants import Entry, entries
from tests.support.function_cases import FUNCTION_CHECKS, search

MUTANTS = entries()
by_name = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@by_name
def test_a_mutant_is_found(mutant: Entry, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant.crashes:  # a mutant that hangs takes as long as the deadline
        monkeypatch.setattr("suite.checks.bench.HANG_S", 3.0)
    if mutant.kind == "trainer":
        outcome = bench.search(mutant.trainer, mutant.killed_by, shrink=False)
        assert mutant.killed(outcome), outcome.failure
    else:
        assert search(mutant.kind, mutant.killed_by, mutant.function()).finding


@pytest.mark.parametrize(
    ("outcome", "crashes", "killed"),
    [
        (Outcome("the gradient is off", [], 1), "", True),
        (Outcome("", [], 1), "", False),
        (Outcome("the trainer raised: RuntimeError", [], 1, crashed=True), "", False),
        (Outcome("the trainer raised: RuntimeError", [], 1, crashed=True), "no answer", False),
        (Outcome("no answer to 'observe'", [], 1, crashed=True), "no answer", True),
    ],
)
def test_a_crash_kills_only_where_the_file_says_so(outcome: Outcome, crashes: str, killed: bool) -> None:
    assert Entry("", "trainer", "gradient", "", "", crashes).killed(outcome) is killed


@by_name
def test_a_mutants_file_has_the_bug_and_its_source(mutant: Entry) -> None:
    assert mutant.bug.endswith(".")
    assert mutant.source


def test_every_check_kills_a_mutant() -> None:
    checks = {*CHECKS, *(check for checks in FUNCTION_CHECKS.values() for check in checks)}
    assert {mutant.killed_by for mutant in MUTANTS} == checks
