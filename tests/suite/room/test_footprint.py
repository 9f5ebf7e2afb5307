"""What workers take at least, and what a container's limit has to say to it."""

from __future__ import annotations

import pytest

from suite.room import limits
from tests.support.containers import Files

GB = 10**9


def test_without_a_limit_everything_fits(container: Files) -> None:
    assert limits.lacking(10_000) == limits.tight(10_000) == ""


def test_a_refusal_says_how_many_fit_and_what_to_do(container: Files) -> None:
    container.group(memory_max=4 * GB, memory_current=GB)
    assert limits.lacking(7) == ""
    assert limits.lacking(8) == (
        "memory: 8 worker(s) take 3.2 GB at least, and this container may use 3.0 GB more of its 4.0 GB: there is room "
        "for 7; raise the container's memory limit, or choose fewer devices (--scaling-devices), world sizes "
        "(--scaling-world-sizes), trainers or workloads"
    )
    assert limits.lacking(120, forked=True) == ""
    assert "take 3.0 GB at least" in limits.lacking(121, forked=True)


def test_where_memory_may_get_short_a_sentence_says_so(container: Files) -> None:
    container.group(memory_max=4 * GB, memory_current=GB)
    assert limits.tight(1) == ""
    said = (
        "2 worker(s) take 0.8 GB at least, and this container may use 3.0 GB more of its 4.0 GB; what GPUs, models and "
        "data take comes on top"
    )
    assert limits.tight(2) == said
    assert limits.tight(9, forked=True) == ""
    assert limits.tight(10, forked=True).startswith("10 worker(s) take 0.2 GB at least, and this container may use")
    container.group(memory_oom_group=1)
    assert limits.tight(2) == f"{said}; where they need more, the kernel ends pytest, too (memory.oom.group)"


@pytest.mark.parametrize(("left", "count"), [(100 * GB, 4), (2 * GB, 2), (GB, 1), (0, 1)])
def test_templates_take_half_of_the_memory_at_most(
    container: Files, monkeypatch: pytest.MonkeyPatch, left: int, count: int
) -> None:
    monkeypatch.setattr(limits, "available_cores", lambda: list(range(8)))
    container.group(memory_max=left)
    assert limits.templates() == count


def test_templates_load_one_a_core_of_the_quota(container: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_cores", lambda: list(range(8)))
    assert limits.templates() == limits.MOST_TEMPLATES
    container.group(cpu_max="300000 100000")
    assert limits.templates() == 3
