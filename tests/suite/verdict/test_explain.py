"""Every reason has a sentence; that of a waterfall names a cause with its cost, and claims what the intervals do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

import suite
from suite.verdict import reasons
from suite.verdict.diagnose import CAUSES, OWN_WORK, Bar, Growth, Waterfall
from suite.verdict.explain import About, against_base, grew, sentence
from suite.verdict.metrics import Interval
from suite.verdict.reasons import Kind, Reason, percent

ABOUT = About("ddp", "lenet", world_size=2, batch=128, gradient_bytes=516_272)


def made(**bars: float) -> Waterfall:
    """20 ms ideally, and these milliseconds more."""
    named = tuple(
        Bar(tuple(name.replace("_", " ").split("+")), Interval(ms / 1e3, ms / 1e3 - 1e-4, ms / 1e3 + 1e-4), df=2)
        for name, ms in bars.items()
    )
    gap = sum(bars.values()) / 1e3
    return Waterfall(
        sessions=3,
        ideal_s=Interval(0.020),
        measured_s=Interval(0.020 + gap),
        gap_s=Interval(gap, gap - 1e-4, gap + 1e-4),
        bars=named,
        slow_rank=1,
    )


def test_the_exchange_is_named_with_its_bytes_and_its_share() -> None:
    said = sentence(made(small_batch=0.4, contention=0.2, exchange=5.6), ABOUT)
    assert said == (
        "Exchanging lenet's 0.5 MB of gradients costs 5.6 ms a step (21 %); batch 128 per device is still efficient."
    )


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_a_different_sentence(cause: str) -> None:
    bars = {name.replace(" ", "_"): 8.0 if name == cause else 0.1 for name in CAUSES}
    said = sentence(made(**bars), ABOUT)
    others = {sentence(made(**{n.replace(" ", "_"): 8.0 if n == o else 0.1 for n in CAUSES}), ABOUT) for o in CAUSES}
    assert "8.0 ms a step" in said
    assert len(others) == len(CAUSES)


def test_a_small_batch_that_costs_is_said_beside_the_largest_cause() -> None:
    assert "batch 128 per device is small for it and costs 10 %" in sentence(made(small_batch=3, exchange=7), ABOUT)


def test_other_processes_are_named_where_they_matter() -> None:
    busy = replace(ABOUT, foreign_cores=0.9)
    assert "other processes used 90% of a core" in sentence(made(contention=8), busy)
    assert "other processes" not in sentence(made(contention=8), ABOUT)
    assert "other processes" not in sentence(made(exchange=8), busy)


def test_inseparable_causes_are_named_together() -> None:
    said = sentence(made(**{"overhead+exchange": 8.0}), ABOUT)
    assert said.startswith("Overhead and exchange of ddp, which could not be told apart, cost 8.0 ms a step")


def unsure(waterfall: Waterfall, sessions: int = 4) -> Waterfall:
    """The same estimates, with intervals of 50 ms to either side."""
    wide = [
        Bar(b.causes, Interval(b.step_s.estimate, b.step_s.estimate - 0.05, b.step_s.estimate + 0.05), b.df)
        for b in waterfall.bars
    ]
    gap = waterfall.gap_s.estimate
    return replace(waterfall, sessions=sessions, bars=tuple(wide), gap_s=Interval(gap, gap - 0.05, gap + 0.05))


def test_a_small_gap_is_given_by_its_upper_bound() -> None:
    assert sentence(made(exchange=0.05), ABOUT) == "2 devices lose at most 0.7% of the step."
    assert sentence(made(exchange=-1.0), ABOUT) == "2 devices lose at most 0.0% of the step."


def test_a_cause_that_its_interval_does_not_support_is_not_named() -> None:
    said = sentence(unsure(made(contention=2.0, exchange=3.0)), ABOUT)
    assert said.startswith("Why 2 devices lose 5.0 [-45.0, 55.0] ms a step is not known after 4 sessions")
    assert "--scaling-profile full" in said
    assert "exchang" not in said.lower()


def test_one_session_names_nothing() -> None:
    alone = replace(
        made(exchange=5.0), sessions=1, bars=(Bar(("exchange",), Interval(0.005), 0),), gap_s=Interval(0.005)
    )
    assert sentence(alone, ABOUT).startswith("Why 2 devices lose time is not known from one session")


def test_a_supported_cause_is_named_beside_one_that_may_be_larger() -> None:
    certain = made(contention=2.0, exchange=3.0)
    wide = replace(certain, bars=(certain.bars[0], Bar(("exchange",), Interval(0.003, -0.001, 0.007), 2)))
    assert sentence(wide, ABOUT) == (
        "2 devices that work at once slow one another down: that costs 2.0 ms a step (8 %); another part may cost "
        "more: its interval is too wide to tell."
    )
    assert "may cost more" not in sentence(certain, ABOUT)


def grown(whole: Interval, sessions: int = 4, **parts: Interval) -> Growth:
    return Growth(
        sessions, whole, tuple(Bar((name.replace("_", " "),), found, sessions - 1) for name, found in parts.items())
    )


def test_the_part_that_grew_is_named_with_its_time_and_the_whole_steps() -> None:
    found = grown(Interval(0.0042, 0.004, 0.0044), exchange=Interval(0.004, 0.0038, 0.0042), feed=Interval(0.0002))
    said = grew(found)
    assert said == (
        "Against the base, exchange takes 4.0 [3.8, 4.2] ms a step longer; the whole takes 4.2 [4.0, 4.4] ms a step "
        "longer."
    )
    assert against_base(made(exchange=9.0), ABOUT, found) == f"{said} {sentence(made(exchange=9.0), ABOUT)}"


def test_a_part_is_not_said_to_grow_by_more_than_the_whole() -> None:
    whole, feed = Interval(0.0108, -0.031, 0.0526), Interval(0.0172, -0.093, 0.127)
    nothing = unsure(made(exchange=0.0, feed=6.4), sessions=2)
    for wrong in (
        grown(whole, 2, feed=feed),
        grown(Interval(0.0108, 0.010, 0.0116), feed=Interval(0.0172, 0.016, 0.018)),
    ):
        said = against_base(nothing, ABOUT, wrong)
        assert said.startswith("Which part grew is not known after")
        assert "10.8 [" in said
        assert "feed" not in said


def test_a_step_that_takes_no_longer_has_no_part_that_grew() -> None:
    found = grown(Interval(-0.002, -0.003, -0.001), exchange=Interval(0.0, -0.001, 0.001))
    assert grew(found) == "The step takes no longer than in the base."


def test_one_devices_own_work_is_a_part_that_grows() -> None:
    found = grown(Interval(0.010, 0.009, 0.011), **{OWN_WORK: Interval(0.010, 0.009, 0.011)})
    assert grew(found).startswith("Against the base, one device's own work takes 10.0 [9.0, 11.0] ms a step longer")


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
    said = reasons.sentence(Reason(kind, NUMBERS, NAMES))
    assert str(Reason(kind, NUMBERS, NAMES)) == said
    assert "{" not in said
    others = {reasons.sentence(Reason(other, NUMBERS, NAMES)) for other in get_args(Kind) if other != kind}
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
    assert said in reasons.sentence(Reason(kind, numbers, NAMES))


def test_a_ratio_is_in_words() -> None:
    assert [percent(delta) for delta in (0.0488, -0.0488, 3.0, -3.0)] == [
        "5.0% slower", "4.8% faster", "over ten times slower", "over ten times faster",
    ]  # fmt: skip
