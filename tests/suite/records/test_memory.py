"""The peak memory of an arm: put together over windows, and in words."""

from __future__ import annotations

import pytest

from suite.processes.answers import PeakMemory
from suite.records.memory import RankMemory, largest, most_reserved, shown

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
def test_words(ranks: list[RankMemory], words: str) -> None:
    assert shown(ranks) == words
