"""`python -m docs.performance.growth`: exponents and tables, the parts of a session, and ranks that only answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from docs.performance import growth, stub_ranks
from docs.performance.__main__ import PAGE
from suite.rank.commands import COMMANDS
from suite.records import history
from suite.records.record import Session
from tests.support import records

WINDOW = {"arm": "candidate:ddp:lenet:strong:1", "block": 0}


def test_a_power_has_its_exponent_and_what_is_not_above_0_has_none() -> None:
    rows = [(3 * size, size**2, 7.0, size - 2) for size in (2, 4, 8)]
    linear, square, constant, none = growth.exponents((2, 4, 8), rows)
    assert (linear, square, constant) == pytest.approx((1.0, 2.0, 0.0))
    assert none is None


def test_a_table_says_what_each_more_takes_where_a_fixed_cost_hides_it() -> None:
    text = growth.table(("ranks", "s", "MB"), (10, 1_000), [(5.0, 90.0), (7.97, 90.0)], "rank")
    lines = text.splitlines()
    assert lines[2:4] == ["| 10 | 5.00 | 90.0 |", "| 1,000 | 7.97 | 90.0 |"]
    assert lines[4].startswith("| exponent | 0.10 | ")
    assert lines[5] == "| each more rank | 0.00300 | 0 |"


def test_a_table_of_one_size_has_no_exponent() -> None:
    assert len(growth.table(("ranks", "s"), (2,), [(5.0,)], "rank").splitlines()) == 3


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (0.00123, "0.00123"), (0.5, "0.500"), (12.34, "12.3"), (1234.4, "1,234")]
)
def test_a_figure_has_three_digits(value: float, shown: str) -> None:
    assert growth.figure(value) == shown


def test_the_parts_of_a_session_leave_out_its_windows_and_probes() -> None:
    """Also a window that was taken again, and of all of them the time of the slowest rank."""
    seconds = {"waiting_s": 1, "starting_s": 2, "warming_s": 3, "timing_s": 10, "counting_s": 0.5}
    windows = [
        {**WINDOW, "duration_ns": [2e9, 3e9], "first": {"duration_ns": [4e9, 1e9]}},
        {**WINDOW, "duration_ns": [1e9, 1e9]},
    ]
    probe = {"cell": "c", "side": "candidate", "point": "step", "round": 0, "steps": 1, "duration_ns": [2e9]}
    content = {"number": 0, "started_utc": records.STARTED, "wall_s": 20, "windows": windows, "probes": [probe]}
    parts = growth.parts_s(Session.model_validate(content | seconds))
    assert dict(zip(growth.PARTS, parts, strict=True)) == pytest.approx(
        {"start s": 3, "warm-up s": 3, "counting s": 0.5, "between windows s": 2, "rest s": 1.5}
    )


def test_copies_of_a_record_are_a_history(tmp_path: Path) -> None:
    machine = tmp_path / records.KEY
    growth.keep_copies(machine, records.run_of(), 3)
    found = history.read(machine)
    assert found.skipped == ()
    assert [run.started_utc[:10] for run in found.runs] == ["2020-01-01", "2020-01-02", "2020-01-03"]


def test_a_process_is_watched_with_those_below_it(tmp_path: Path) -> None:
    spin = "sum(range(10**7))"
    below = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    seen = growth.watched([sys.executable, "-c", f"{below}; x = bytearray(50_000_000); {spin}"], tmp_path)
    assert seen.cpu_s > 0.05
    assert seen.below_s > 0.05
    assert 50 < seen.peak_mb < 200
    assert seen.descriptors >= 3


def test_a_process_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="it ended with status 3"):
        growth.watched([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_ranks_that_only_answer_know_commands_of_real_ones() -> None:
    assert stub_ranks.COMMANDS.keys() <= COMMANDS.keys()


def test_the_page_has_the_heading() -> None:
    assert f"## {growth.TITLE}\n" in PAGE.read_text(encoding="utf-8")
