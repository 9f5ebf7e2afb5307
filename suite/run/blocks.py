"""The order in which arms are timed: balanced within a block, drawn at random between blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def block(units: Sequence[Sequence[T]], rng: random.Random) -> list[T]:
    """One block: every arm twice, forwards and then backwards (A B B A), so that a steady drift cancels.

    Args:
        units: groups of arms; a group's members stay neighbours. The order of groups, and of members in a group, is
            drawn anew.
        rng: the run's own, so that the order can be repeated from its seed.
    """
    shuffled = [rng.sample(list(unit), len(unit)) for unit in rng.sample(list(units), len(units))]
    forwards = [arm for unit in shuffled for arm in unit]
    return forwards + forwards[::-1]
