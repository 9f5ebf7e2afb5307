"""`docs.evidence.part_scatter`: how much sessions differ in what a part grew by, by both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from docs.evidence import part_scatter
from suite.records.record import Record
from tests.support import records

CELL: dict[str, Any] = {"id": "ddp-lenet-strong-2", "world_size": 2}
STEP_MS = {"one": 20.0, "one_resident": 20.0, "resident": 12.0, "step": 12.0}


def probes(session: int) -> Iterator[dict[str, Any]]:
    """Eight rounds of one step each. The candidate's exchange is longer by the session's number of milliseconds.

    In its last three windows it takes fifty more for each session, as where others have the cores.
    """
    for side, longer_ms in (("candidate", float(session)), ("base", 0.0)):
        for point, step_ms in STEP_MS.items():
            for number in range(8):
                taken_ms = step_ms + (longer_ms if point in ("resident", "step") else 0.0)
                taken_ms += 50.0 * longer_ms if point == "resident" and number >= 5 else 0.0
                about = {"cell": CELL["id"], "side": side, "point": point, "round": number, "steps": 1}
                yield about | {"duration_ns": [round(taken_ms * 1e6)]}


def record(sessions: int) -> Record:
    made = [records.session(number) | {"probes": list(probes(number))} for number in range(sessions)]
    timed = [records.cell(**CELL, sec_per_epoch={"estimate": 0.012 * 60000 / 256})]
    return records.make(sessions=made, arms=[records.arm("candidate")], cells=timed)


def test_what_slow_windows_add_is_in_the_middle_and_not_in_the_faster_half() -> None:
    shown = part_scatter.variances(record(3), record(3).cells[0])
    assert shown["one device's own work"] == [0.0, 0.0]
    middle, half = shown["small batch + contention + imbalance + overhead + exchange, not separable"]
    assert half == pytest.approx(1 / 12**2), "sessions of 0, 1 and 2 ms"
    assert middle > 100 * half
    table = part_scatter.table([record(3)]).splitlines()
    assert [row for row in table if row.startswith("| the whole step |")] == [
        "| the whole step | 1 | 8.3% | 8.3% | 8.3% | 8.3% |"
    ]


def test_two_sessions_show_no_scatter() -> None:
    assert part_scatter.variances(record(2), record(2).cells[0]) == {}
