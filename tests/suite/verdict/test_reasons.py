"""Reasons are data; every kind has a sentence, which says its numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import suite
from suite.verdict.reasons import Kind, Reason, percent, sentence

# Numbers that any kind may need, each unlike the others.
NUMBERS = {
    "sessions": 3, "needed": 4, "more_s": 90.0, "delta": 0.07, "low": 0.011, "high": 0.13, "average": 0.19,
    "confidence": 0.99, "tolerance": 0.23, "floor": 0.8, "efficiency": 0.71, "least": 0.61, "most": 0.92, "runs": 6,
    "less": 0.31, "mean": -0.041, "pairs": 2, "bound": -0.053, "margin": 0.05, "seed_sd": 0.02, "more": 7,
    "budget_s": 60.0, "judged": 2, "cells": 5,
}  # fmt: skip
NAMES = {"than": "on one device", "room": ""}


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_has_a_sentence_of_its_own(kind: Kind) -> None:
    said = sentence(Reason(kind, NUMBERS, NAMES))
    assert str(Reason(kind, NUMBERS, NAMES)) == said
    assert "{" not in said
    others = {sentence(Reason(other, NUMBERS, NAMES)) for other in get_args(Kind) if other != kind}
    assert said not in others


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_is_the_reason_of_a_rule(kind: str) -> None:
    root = Path(suite.__path__[0])
    rules = [*root.glob("verdict/*.py"), root / "run" / "judging.py"]
    made = (path.read_text() for path in rules if path.name != "reasons.py")
    assert any(re.search(rf'Reason\(\s*"{kind}"|"{kind}" if | else "{kind}"', text) for text in made)


@pytest.mark.parametrize(
    ("kind", "without", "said"),
    [
        ("undecided", "more_s", "it needs more time than is sensible, a quieter machine, or a tolerance of 23%"),
        ("undecided", "tolerance", "it needs about 1.5 more minutes, or a quieter machine"),
        ("floor undecided", "more_s", "neither below it nor above 0.65"),
        ("left", "more_s", "it needs a quieter machine, and left its time to other cells after 3 sessions"),
        ("accuracy undecided", "more", "it needs more seed pairs than is sensible, or a margin of 0.05"),
        ("machine undecided", "tolerance", "each an hour or more after the one before, a quieter machine"),
    ],
)
def test_a_number_that_is_not_to_be_had_is_not_in_the_sentence(kind: Kind, without: str, said: str) -> None:
    numbers = {name: number for name, number in NUMBERS.items() if name != without}
    assert said in sentence(Reason(kind, numbers, NAMES))


def test_a_ratio_is_in_words() -> None:
    assert [percent(delta) for delta in (0.0488, -0.0488, 3.0, -3.0)] == [
        "5.0% slower", "4.8% faster", "over ten times slower", "over ten times faster",
    ]  # fmt: skip
