"""`docs.evidence.causes`: what is drawn, kept, shown and left for the next time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from docs.evidence import causes, log
from suite.records.record import Record
from suite.verdict import diagnose
from tests.support import records

CODE = {"commit": "c", "trees": [], "dirty": False}


def record(**changes: Any) -> Record:
    return records.make(cells=[records.cell(waterfalls=[records.waterfall(**changes)])])


def line(planted: str, right: str, largest: str, named: str | None = None) -> log.Line:
    bars = {name: [0.0, -1.0, 1.0] for name in diagnose.CAUSES}
    said = {"planted": planted, "right": [right], "largest": [largest], "named": named and [named]}
    return {**said, "ideal_ms": 30.0, "measured_ms": 50.0, "bars_ms": bars, "wall_s": 110.0, **CODE}


@pytest.mark.parametrize("name", causes.CAUSES)
def test_what_is_right_to_name_is_a_cause_and_the_largest_delay(name: str) -> None:
    cause, rng = causes.CAUSES[name], random.Random(1)
    seen = set()
    for _ in range(50):
        delays_s, right = causes.draw(cause, rng)
        seen |= set(right)
        assert set(delays_s) == set(cause.delayed)
        assert set(right) <= set(diagnose.CAUSES)
        if cause.delayed and not cause.own:
            largest, *others = sorted(delays_s.values(), reverse=True)
            assert delays_s[right[0]] == largest
            assert causes.DELAY_S[0] <= largest <= causes.DELAY_S[1]
            assert all(largest >= 1.49 * other for other in others)
    assert seen == {*cause.own, *cause.delayed}, "each of two is the larger one in some runs"


def test_a_run_is_kept_with_its_bars_and_what_it_names() -> None:
    kept = causes.line_of("delayed exchange", {"exchange": 0.0056}, ("exchange",), record())
    assert (kept["largest"], kept["named"], kept["delays_ms"]) == (["exchange"], ["exchange"], {"exchange": 5.6})
    assert (kept["ideal_ms"], kept["measured_ms"], kept["sessions"]) == (28.0, 34.4, 4)
    assert kept["bars_ms"]["contention + imbalance"][0] == 0.2
    assert causes.is_right(kept, "largest")
    assert causes.is_right(kept, "named")
    assert not causes.is_right({**kept, "right": ["feed"]}, "named")
    assert not causes.is_right({**kept, "largest": ["exchange", "feed"]}, "largest"), "two that are not told apart"


def test_a_run_without_a_waterfall_says_why() -> None:
    with pytest.raises(RuntimeError, match="slow rank: no waterfall"):
        causes.line_of("slow rank", {}, ("imbalance",), records.make(cells=[records.cell()]))


def test_the_table_counts_by_what_was_planted_and_by_how_many() -> None:
    pair = "delayed exchange, slow rank"
    kept = [line("slow rank", "imbalance", "imbalance", "imbalance"), line("slow loader", "feed", "exchange", None)]
    kept += [line("nothing", "exchange", "exchange"), line(pair, "imbalance", "imbalance", "exchange")]
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[1:6] for row in causes.table(kept).splitlines()[2:]}
    assert rows["**one cause**"] == ["2", "50% [1%, 99%]", "1", "0", "1"]
    assert rows["**two causes**"] == rows[pair] == ["1", "100% [3%, 100%]", "0", "1", "0"]
    assert causes.half_width(kept[0]) == 1.0 / 50.0


def test_the_script_goes_on_where_the_log_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = tmp_path / "causes.jsonl", 0

    def one_run(*_: object) -> Record:
        nonlocal made
        if made == 3:
            raise KeyboardInterrupt
        made += 1
        return record()

    monkeypatch.setattr(causes, "one_run", one_run)
    monkeypatch.setattr(log, "code_state", lambda: CODE)
    arguments = ["--log", str(path), "--each", "1"]
    with pytest.raises(SystemExit, match="the run in progress is not kept, 3 are"):
        causes.main(arguments)
    made = -100
    causes.main(arguments)
    assert sorted(entry["planted"] for entry in log.read_log(path)) == sorted(causes.CAUSES)
