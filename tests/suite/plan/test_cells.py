"""Which arms are timed for which cells."""

from __future__ import annotations

from suite.plan import cells
from suite.plan.cells import Arm, Cell

STRONG1, STRONG2 = Cell("ddp", "lenet", "strong", 1), Cell("ddp", "lenet", "strong", 2)
WEAK1, WEAK2 = Cell("ddp", "lenet", "weak", 1), Cell("ddp", "lenet", "weak", 2)


def test_one_device_is_measured_once_for_both_modes() -> None:
    assert cells.arm("candidate", "ddp", WEAK1) == cells.arm("candidate", "ddp", STRONG1)


def test_efficiency_needs_one_device_and_speedup_the_plain_trainer() -> None:
    found = {(arm.trainer, arm.mode, arm.world_size) for [arm] in cells.one_device_arms([STRONG2, WEAK2], speedup=True)}
    assert found == {("ddp", "strong", 1), ("single", "strong", 1)}
    assert cells.one_device_arms([STRONG2, WEAK2], speedup=False) == [(Arm("candidate", "ddp", "lenet", "strong", 1),)]


def test_every_candidate_is_next_to_its_bases() -> None:
    units = cells.units([STRONG1, WEAK1, STRONG2], {"base": "scratch", "pinned": None})
    assert units == [
        tuple(
            Arm(side, trainer, "lenet", "strong", size)
            for side, trainer in (("candidate", "ddp"), ("base", "scratch"), ("pinned", "ddp"))
        )
        for size in (1, 2)
    ]


def test_ids_have_the_class_name_of_a_users_trainer() -> None:
    assert Cell("some/path.py:Mine", "lenet", "weak", 4).id == "Mine-lenet-weak-4"
