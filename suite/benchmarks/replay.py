"""Hands recorded samples to pytest-benchmark, by its public means only: a marker with a timer of ours, and `pedantic`.

The samples were taken in workers long before the item runs. The timer is a clock that the benchmarked function moves
forward by one recorded sample a call, so what pytest-benchmark stores, compares and draws is what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Clock:
    """A clock in seconds that stands still except when told to move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


CLOCK = Clock()


def replay(benchmark: Any, samples_s: Sequence[float], extra_info: dict[str, Any]) -> None:
    """Let pytest-benchmark's fixture, made with `timer=CLOCK`, time a function that takes `samples_s` in turn.

    Without samples the fixture stays unused, because it refuses to time nothing.
    """
    if not samples_s:
        return
    remaining = iter(samples_s)

    def one_step() -> None:
        CLOCK.now_s += next(remaining, 0.0)

    benchmark.extra_info.update(extra_info)
    benchmark.pedantic(one_step, rounds=len(samples_s), iterations=1, warmup_rounds=0)
