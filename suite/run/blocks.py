"""The order in which arms are timed: balanced within a block, drawn at random between blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def block(units: Sequence[Sequence[T]], rng: random.Random) -> list[T]:
    """Return one block: every arm twice, forwards and then backwards (A B B A), so that a steady drift cancels.

    Args:
        units: groups of arms. A group's members stay neighbours; the order of groups, and of members in a group, is
            drawn for each block.
        rng: the run's own, so that its seed repeats the order.
    """
    shuffled = [rng.sample(list(unit), len(unit)) for unit in rng.sample(list(units), len(units))]
    forwards = [arm for unit in shuffled for arm in unit]
    return forwards + forwards[::-1]
