"""Which arms are timed for which cells."""

from __future__ import annotations

import pytest

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


def test_ids_have_the_class_name_of_a_users_trainer() -> None:
    assert Cell("some/path.py:Mine", "lenet", "weak", 4).id == "Mine-lenet-weak-4"
    assert Cell("some/path.py:Mine", "lenet", "weak", 4, "path.Mine").id == "path.Mine-lenet-weak-4"


@pytest.mark.parametrize(
    ("trainers", "names"),
    [
        (["ddp", "some/path.py:Mine", "package.module:Other"], ["ddp", "Mine", "Other"]),
        (["a.py:Mine", "some/b.py:Mine", "c.py:Other"], ["a.Mine", "b.Mine", "Other"]),
        (["a/x.py:Mine", "b/x.py:Mine", "y.py:Mine"], ["a/x.Mine", "b/x.Mine", "y.Mine"]),
        (["a.x:Mine", "b.x:Mine", "x:Mine"], ["a.x.Mine", "b.x.Mine", "x.Mine"]),
        (["ddp", "a.py:ddp"], ["ddp", "a.ddp"]),
        (["a.py:Mine", "a:Mine"], ["a.py:Mine", "a:Mine"]),
        (["b.py:Mine", "a.b:Mine", "a.b.py:Mine"], ["b.Mine", "a.b:Mine", "a.b.Mine"]),
        (["a.py:Mine", "a.py:Mine"], ["Mine", "Mine"]),
    ],
)
def test_names_tell_trainers_apart_and_are_short_where_they_can_be(trainers: list[str], names: list[str]) -> None:
    found = cells.names(trainers)
    assert [found[trainer] for trainer in trainers] == names


def test_trainers_that_differ_in_the_first_of_very_many_folders_have_their_whole_names() -> None:
    trainers = [first + "/folder" * 100_000 + ".py:Mine" for first in "ab"]
    found = cells.names(trainers)
    assert len(found) == 2
    assert all(found.get(trainer) == trainer for trainer in trainers)  # compared as a whole, CI would print 17 MB
