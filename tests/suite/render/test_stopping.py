"""The sentence on where to stop follows from the intervals, and promises no more than they show."""

from __future__ import annotations

from typing import Any

import pytest

from suite.render import stopping
from suite.render.stopping import Stop
from tests.support import records


def stop(**efficiencies: Any) -> Stop:
    """Of one trainer at strong scaling; `k2=(0.84, 0.81, 0.87)` is the efficiency at k = 2 with its interval."""
    cells = records.matrix(modes=("strong",), world_sizes=(1, *(int(name[1:]) for name in efficiencies)))
    for cell, value in zip(cells[1:], efficiencies.values(), strict=True):
        names = ("estimate", "low", "high")
        cell["efficiency"] = None if value is None else dict(zip(names, value, strict=False))
    [found] = stopping.stops(records.make(cells=cells))
    return found


def test_it_is_the_largest_whose_whole_interval_is_above_the_bound() -> None:
    found = stop(k2=(0.95, 0.93, 0.97), k4=(0.85, 0.80, 0.90), k8=(0.60, 0.55, 0.65))
    assert found.sentence.startswith("Stop at k = 4: the whole interval of its efficiency, 0.85 [0.80, 0.90], is")
    assert found.sentence.endswith("Beyond it does not: 0.60 [0.55, 0.65] at k = 8.")


def test_an_estimate_above_the_bound_is_not_enough() -> None:
    found = stop(k2=(0.95, 0.93, 0.97), k4=(0.85, 0.79, 0.91))
    assert found.sentence.startswith("Stop at k = 2:")
    assert found.sentence.endswith("Whether more pays is not shown: 0.85 [0.79, 0.91] at k = 4.")


@pytest.mark.parametrize(
    ("efficiencies", "sentence"),
    [
        ({"k2": (0.7, 0.6, 0.79)}, "Stay with one device: 0.70 [0.60, 0.79] at k = 2, below 0.80"),
        ({"k2": (0.7, 0.6, 0.81)}, "That more than one device pays is not shown: 0.70 [0.60, 0.81] at k = 2"),
        ({"k2": (0.9,)}, "Where to stop cannot be said from a single session, which shows no interval: 0.90 at k = 2"),
        ({"k2": None}, "Where to stop cannot be said: efficiency was not measured."),
        ({"k2": (0.9, 0.85, 0.95)}, "k = 2, the largest measured, still pays: the whole interval of its efficiency"),
    ],
    ids=["below", "astride", "single", "unmeasured", "above"],
)
def test_it_says_no_more_than_was_shown(efficiencies: dict[str, Any], sentence: str) -> None:
    assert stop(**efficiencies).sentence.startswith(sentence)


def test_the_largest_measured_may_not_be_the_last_that_pays() -> None:
    assert stop(k2=(0.9, 0.85, 0.95)).sentence.endswith("More may pay as well.")


def test_an_epoch_costs_k_times_its_seconds() -> None:
    one, two = stop(k2=(0.9, 0.85, 0.95)).sizes
    assert one.device_s == one.sec_per_epoch == 13.0
    assert two.device_s == pytest.approx(13.0 / 0.9)
    assert two.sec_per_epoch == pytest.approx(two.device_s / 2)


def test_one_device_has_nowhere_to_stop() -> None:
    assert stopping.stops(records.make(cells=[records.cell()])) == []


def test_modes_and_trainers_stand_apart() -> None:
    cells = records.matrix(trainers=("ddp", "pkg.mod:Mine"))
    titles = [found.title for found in stopping.stops(records.make(cells=cells))]
    assert titles == ["ddp lenet strong", "ddp lenet weak", "Mine lenet strong", "Mine lenet weak"]
