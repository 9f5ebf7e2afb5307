"""Counters and peak memory of an arm: ranks put together, what changed in words, what is not compared."""

from __future__ import annotations

from typing import Any

import pytest

from suite.processes.jobs import Counted, PeakMemory, Tally
from suite.records.counters import (
    Count,
    Counters,
    RankMemory,
    changes,
    largest,
    memory_shown,
    merged,
    most_reserved,
    not_reproducible,
    shown,
)

MADE_WITH = "torch 2.15.0, definitions 1"


def counters(*counts: Count, made_with: str = MADE_WITH) -> Counters:
    return Counters(made_with=made_with, steps=3, counts=counts)


def count(what: str, value: int | tuple[int, ...], *, most: int | None = None, **fields: Any) -> Count:
    least = (value,) if isinstance(value, int) else value
    return Count(what=what, least=least, most=least if most is None else (most,), **fields)


def exchange(calls: int, n_bytes: int, dtype: str = "float32") -> tuple[Count, Count]:
    return (
        count("all_reduce", calls, dtype=dtype),
        count("all_reduce", n_bytes, dtype=dtype, unit="bytes"),
    )


def rank(**least_and_most: tuple[int, int]) -> Counted:
    tallies = (Tally(what, "", "calls", *bounds) for what, bounds in least_and_most.items())
    return Counted(MADE_WITH, 3, tuple(tallies))


class TestMerged:
    """Ranks that agree share one value."""

    def test_ranks_that_agree_have_one_value(self) -> None:
        assert merged([rank(operator=(5, 5)), rank(operator=(5, 5))]) == counters(count("operator", 5))

    def test_what_one_rank_alone_does_is_0_on_the_others(self) -> None:
        both = merged([rank(barrier=(1, 1), operator=(7, 9)), rank(operator=(5, 5))])
        assert both.of("barrier") == (count("barrier", (1, 0)),)
        assert both.of("operator") == (Count(what="operator", least=(7, 5), most=(9, 5)),)


class TestChanges:
    """What a step does differently, in words."""

    @pytest.mark.parametrize(
        ("before", "now", "said", "rose"),
        [
            (
                exchange(2, 500_000),
                exchange(4, 1_000_000),
                "2 → 4 all_reduce a step, +500.0 kB: as when accumulation no longer skips its exchange",
                True,
            ),
            (exchange(2, 500_000), exchange(4, 900_000), "2 → 4 all_reduce a step, +400.0 kB", True),
            (exchange(2, 500_000), exchange(3, 750_000), "2 → 3 all_reduce a step, +250.0 kB", True),
            (
                exchange(1, 500_000),
                exchange(4, 500_000),
                "1 → 4 all_reduce a step: the same in more pieces, as with smaller buckets",
                True,
            ),
            (exchange(4, 500_000), exchange(1, 500_000), "4 → 1 all_reduce a step", False),
            (
                (count("host-device synchronisation", 0),),
                (count("host-device synchronisation", 1),),
                "0 → 1 host-device synchronisations a step: as with .item(), or a value that decides what is done next",
                True,
            ),
            (exchange(1, 40), exchange(1, 80), "1 all_reduce a step, +40 bytes", True),
            (
                exchange(1, 20, "bfloat16"),
                exchange(1, 40),
                "1 all_reduce of float32 instead of bfloat16 a step, +20 bytes",
                True,
            ),
            (
                exchange(1, 40),
                exchange(1, 20, "bfloat16"),
                "1 all_reduce of bfloat16 instead of float32 a step, -20 bytes",
                False,
            ),
            (exchange(2, 40), (), "2 → 0 all_reduce a step, -40 bytes", False),
            ((), exchange(1, 4_000_000_000), "0 → 1 all_reduce a step, +4.0 GB", True),
            ((count("operator", 10),), (count("operator", 12),), "10 → 12 operators a step", True),
            ((count("barrier", (0, 1)),), (count("barrier", (1, 1)),), "0 to 1 by rank → 1 barrier a step", True),
            (
                (count("peak memory", 5, unit="bytes"),),
                (count("peak memory", 2_500_005, unit="bytes"),),
                "peak memory a step, +2.5 MB",
                True,
            ),
        ],
    )
    def test_a_change_says_what_there_is_more_or_less_of(
        self, before: tuple[Count, ...], now: tuple[Count, ...], said: str, rose: bool
    ) -> None:
        assert changes(counters(*now), counters(*before)) == [(said, rose)]

    def test_equal_steps_have_no_change(self) -> None:
        """A counter of 0 and one that is missing are the same."""
        one = counters(*exchange(2, 80), count("operator", 5), count("barrier", 0))
        assert changes(one, counters(count("operator", 5), *exchange(2, 80))) == []

    def test_one_rank_that_does_more_is_a_rise_although_another_does_less(self) -> None:
        [change] = changes(counters(count("operator", (5, 8))), counters(count("operator", (9, 7))))
        assert change == ("7 to 9 by rank → 5 to 8 by rank operators a step", True)

    def test_exchanges_are_named_first(self) -> None:
        now = counters(count("operator", 5), *exchange(1, 4))
        assert [c.said.split()[3] for c in changes(now, counters(count("operator", 4)))] == ["all_reduce", "operators"]

    @pytest.mark.parametrize("side", ["now", "before"])
    def test_what_varies_is_not_compared_and_is_named(self, side: str) -> None:
        varies = counters(count("operator", 10, most=12), *exchange(1, 4))
        steady = counters(count("operator", 30), *exchange(1, 4))
        now, before = (varies, steady) if side == "now" else (steady, varies)
        assert changes(now, before) == []
        assert not_reproducible(now, before) == ["operators (10 to 12 a step)"]
        assert not_reproducible(steady, steady) == []


def test_counters_of_other_versions_are_not_comparable() -> None:
    assert counters().comparable(counters())
    assert not counters().comparable(counters(made_with="torch 2.9.0, definitions 1"))


def test_a_table_shows_calls_dtypes_and_bytes() -> None:
    both = (*exchange(1, 600), *exchange(2, 1_000, "bfloat16"))
    assert shown(both) == "3, bfloat16 and float32, 1.6 kB"
    assert shown((count("operator", 3, most=4),)) == "3 to 4"
    assert shown((count("operator", (3, 5)),)) == "3 to 5"
    assert shown(()) == "-"


MB = 10**6


def on_gpus(*allocated: int) -> PeakMemory:
    """Return a process's peak on several GPUs, of which twice as much is reserved."""
    return PeakMemory(allocated_bytes=allocated, reserved_bytes=tuple(2 * each for each in allocated))


def test_the_largest_of_all_windows_is_kept_of_each_gpu() -> None:
    kept = largest(largest((), [on_gpus(1, 5), on_gpus(3)]), [on_gpus(2, 4), on_gpus(3)])
    assert [rank.allocated_bytes for rank in kept] == [(2, 5), (3,)]
    assert [rank.reserved_bytes for rank in kept] == [(4, 10), (6,)]
    assert most_reserved(kept) == 10


def test_a_rank_that_does_not_tell_is_empty() -> None:
    assert largest((), [None, PeakMemory(resident_bytes=7)]) == (RankMemory(), RankMemory(resident_bytes=7))


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], ""),
        ([RankMemory()], ""),
        ([RankMemory(resident_bytes=300 * MB)] * 2, "300.0 MB resident"),
        ([RankMemory(resident_bytes=300 * MB, since_start=True)], "300.0 MB resident (since the process began)"),
        (
            largest((), [on_gpus(10 * MB), on_gpus(12 * MB)]),
            "10.0 MB to 12.0 MB in tensors, 20.0 MB to 24.0 MB reserved",
        ),
    ],
)
def test_peak_memory_in_words(ranks: list[RankMemory], words: str) -> None:
    assert memory_shown(ranks) == words
