"""What failures look like is scored by what the mutants' files say (`python -m tests.mutants.diagnoses`)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from suite.properties import suspects
from tests.mutants import entries
from tests.mutants.diagnoses import BETWEEN, is_right, kind, suspects_of, table
from tests.support.project import REPOSITORY

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
