"""The sentence names the largest cause, what it costs, and claims no more than the intervals do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.diagnose import CAUSES, Bar, Waterfall
from suite.explain import About, grew, sentence
from suite.metrics import Interval

ABOUT = About("ddp", "lenet", world_size=2, batch=128, gradient_bytes=516_272, foreign_cores=0.01)


def made(**bars: float) -> Waterfall:
    """20 ms ideally, and these milliseconds more."""
    named = tuple(
        Bar(tuple(name.replace("_", " ").split("+")), Interval(ms / 1e3, ms / 1e3 - 1e-4, ms / 1e3 + 1e-4))
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
        "Exchanging lenet's 0.5 MB of gradients holds the step up: 5.6 ms a step: 21%; "
        "batch 128 per device is still efficient."
    )


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_words_of_its_own(cause: str) -> None:
    bars = {name.replace(" ", "_"): 8.0 if name == cause else 0.1 for name in CAUSES}
    said = sentence(made(**bars), ABOUT)
    others = {sentence(made(**{n.replace(" ", "_"): 8.0 if n == o else 0.1 for n in CAUSES}), ABOUT) for o in CAUSES}
    assert "8.0 ms a step" in said
    assert len(others) == len(CAUSES)


def test_a_small_batch_that_costs_is_said_beside_the_largest_cause() -> None:
    assert "batch 128 per device is small for it and costs 10% more" in sentence(made(small_batch=3, exchange=7), ABOUT)


def test_others_on_the_machine_are_named_where_they_matter() -> None:
    busy = replace(ABOUT, foreign_cores=0.9)
    assert "other processes used 90% of a core" in sentence(made(contention=8), busy)
    assert "other processes" not in sentence(made(contention=8), ABOUT)
    assert "other processes" not in sentence(made(exchange=8), busy)


def test_causes_that_could_not_be_told_apart_are_named_together() -> None:
    said = sentence(made(**{"overhead+exchange": 8.0}), ABOUT)
    assert said.startswith("Overhead and exchange of ddp, which could not be told apart, cost 8.0 ms a step")


def test_no_gap_and_a_gap_that_may_be_chance_are_not_explained() -> None:
    assert sentence(made(exchange=0.05), ABOUT).startswith("Nothing to explain: 2 devices lose 0.2%")
    assert sentence(made(exchange=-1.0), ABOUT).startswith("Nothing to explain")


def test_an_uncertain_largest_cause_says_so() -> None:
    certain = made(contention=2.0, exchange=3.0)
    unsure = replace(certain, bars=(certain.bars[0], Bar(("exchange",), Interval(0.003, -0.001, 0.007))))
    assert "its interval includes zero" in sentence(unsure, ABOUT)
    assert "its interval includes zero" not in sentence(certain, ABOUT)


def test_what_grew_against_the_base_is_named_with_how_much_of_the_whole() -> None:
    said = grew(made(contention=1.0, exchange=9.0), made(contention=0.8, exchange=5.0))
    assert said == "Against the base, exchange grew most: by 4.0 ms of 4.2 ms that the step takes longer."


def test_a_slower_device_is_told_from_worse_scaling() -> None:
    slower = replace(made(exchange=5.0), ideal_s=Interval(0.030), measured_s=Interval(0.035))
    assert "one device's own work grew most: by 10.0 ms" in grew(slower, made(exchange=5.0))
    assert grew(made(exchange=5.0), made(exchange=6.0)) == "No part of the step takes longer than the base's."
