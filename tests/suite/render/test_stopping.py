"""The sentence on where to stop follows from the intervals, and promises no more than they show."""

from __future__ import annotations

from typing import Any

import pytest

from suite.render.sections.scaling import Stop, device_s, stops
from tests.support import records


def stop(**efficiencies: Any) -> Stop:
    """Return that of one trainer at strong scaling; `k2=(0.84, 0.81, 0.87)` is E_2 with its interval."""
    cells = records.matrix(modes=("strong",), world_sizes=(1, *(int(name[1:]) for name in efficiencies)))
    for cell, value in zip(cells[1:], efficiencies.values(), strict=True):
        names = ("estimate", "low", "high")
        cell["efficiency"] = None if value is None else dict(zip(names, value, strict=False))
    [found] = stops(records.make(cells=cells))
    return found


HIGH, BELOW, ASTRIDE = (0.95, 0.93, 0.97), (0.7, 0.6, 0.79), (0.7, 0.6, 0.81)


@pytest.mark.parametrize(
    ("efficiencies", "begin", "end"),
    [
        (
            {"k2": HIGH, "k4": (0.85, 0.80, 0.90), "k8": BELOW},
            "Stop at k = 4: the whole interval of its efficiency, 0.85 [0.80, 0.90], is",
            "More devices do not pay: 0.70 [0.60, 0.79] at k = 8.",
        ),
        ({"k2": HIGH, "k4": ASTRIDE}, "Stop at k = 2:", "Whether more pay is not known: 0.70 [0.60, 0.81] at k = 4."),
        ({"k2": HIGH}, "k = 2, the largest measured, still pays: the whole", "More devices may pay as well."),
        ({"k2": BELOW}, "Stay with one device: 0.70 [0.60, 0.79] at k = 2", "the whole interval below 0.80."),
        ({"k2": ASTRIDE}, "Whether more than one device pays is not known: 0.70", "More sessions narrow it."),
        ({"k2": (0.9,)}, "Where to stop is not known, because one session shows no interval: 0.90", "would pay."),
        ({"k2": None}, "Where to stop is not known: efficiency was not", "measured."),
    ],
    ids=["stop", "unknown beyond", "largest", "below", "astride", "single", "unmeasured"],
)  # fmt: skip
def test_it_says_no_more_than_was_shown(efficiencies: dict[str, Any], begin: str, end: str) -> None:
    sentence = stop(**efficiencies).sentence
    assert sentence.startswith(begin)
    assert sentence.endswith(end)


def test_shared_devices_are_the_reason_why_it_is_not_known() -> None:
    shared = [records.cell(), records.cell(world_size=2, oversubscribed=True)]
    [found] = stops(records.make(cells=shared))
    assert found.sentence == "Where to stop is not known: devices were oversubscribed."


def test_devices_that_were_shared_do_not_show_whether_more_pay() -> None:
    own = records.matrix(modes=("strong",), world_sizes=(1, 2, 4))
    own[1]["efficiency"] = dict(zip(("estimate", "low", "high"), HIGH, strict=True))
    own[2] |= {"efficiency": None, "oversubscribed": True}
    [found] = stops(records.make(cells=own))
    assert found.sentence.startswith("k = 2, the largest measured without sharing devices, still pays: ")


def test_an_epoch_costs_k_times_its_seconds() -> None:
    found = stop(k2=(0.9, 0.85, 0.95))
    assert [device_s(cell) for cell in found.cells] == [pytest.approx(13.0), pytest.approx(13.0 / 0.9)]
    assert found.alone_s == 13.0
    assert "An epoch takes 7.22 s and costs 14.4 device-seconds (13 on one device)." in found.sentence


def test_each_trainer_and_mode_with_several_devices_has_a_sentence() -> None:
    assert stops(records.make(cells=[records.cell()])) == []
    cells = records.matrix(trainers=("ddp", "pkg.mod:Mine"))
    titles = [found.title for found in stops(records.make(cells=cells))]
    assert titles == ["ddp lenet strong", "ddp lenet weak", "Mine lenet strong", "Mine lenet weak"]
