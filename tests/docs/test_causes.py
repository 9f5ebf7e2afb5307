"""`python -m docs.evidence.causes`: what is drawn, kept, shown and left for the next time, and what counts as said."""

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
    said = {"kind": planted, "right": [right], "largest": [largest], "named": named and [named]}
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
    assert (kept["ideal_ms"], kept["measured_ms"], kept["taken_apart"]) == (28.0, 34.4, 4)
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
    with pytest.raises(SystemExit, match="the run in progress is not kept"):
        causes.main(arguments)
    made = -100
    causes.main(arguments)
    assert sorted(entry["kind"] for entry in log.read_log(path)) == sorted(causes.CAUSES)


EXCHANGE = "exchange takes 0.9 ms [0.2, 1.6] a step longer than the base's (11% longer), after 12 sessions; the cell"
SLOW_TAIL = "a slow tail grew: the slowest tenth of its rounds is 9.0% slower than the base's next to them"


def compared(**changes: Any) -> Record:
    falls = [records.waterfall(side=side) for side in ("candidate", "base")]
    content = {"waterfalls": falls, "slowdown": records.interval(1.02), "outcome": "PASS"}
    return records.make(cells=[records.cell(**content | changes)])


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, set()),
        ({"cautions": [EXCHANGE]}, {"exchange"}),
        ({"cautions": [EXCHANGE, SLOW_TAIL]}, {"exchange", causes.TAIL}),
        ({"cautions": ["efficiency is 3.0% below the base's: gap widened, nothing slower"]}, set()),
    ],
)
def test_what_is_said_to_have_grown_is_a_part_or_the_tail(changes: dict[str, Any], parts: set[str]) -> None:
    line = causes.grown_line("exchange", compared(**changes))
    assert causes.said(line) == parts
    assert (line["outcome"], line["ratio"], line["taken_apart"]) == ("PASS", 1.02, 4)
    assert line["sides_ms"]["candidate"]["exchange"] == line["sides_ms"]["base"]["exchange"]


def test_only_a_failed_cells_sentence_says_what_grew() -> None:
    sentence = "Against the base, feed takes 1.0 ms [0.5, 1.5] a step longer; the whole takes 1.2 ms [0.9, 1.5] a step"
    falls = [records.waterfall(side="candidate", sentence=sentence)]
    assert causes.said(causes.grown_line("feed", compared(outcome="FAIL", waterfalls=falls))) == {"feed"}
    assert causes.said(causes.grown_line("feed", compared(waterfalls=falls))) == set()


def test_the_table_counts_what_was_said_alone_and_what_was_wrong() -> None:
    both = causes.grown_line("exchange", compared(cautions=[EXCHANGE, SLOW_TAIL]))
    kept = [
        both,
        causes.grown_line("exchange", compared(cautions=[EXCHANGE])),
        causes.grown_line("exchange", compared()),
    ]
    kept += [causes.grown_line("same feed", compared()), causes.grown_line("same feed", compared(cautions=[EXCHANGE]))]
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[1:6] for row in causes.grown_table(kept).splitlines()[2:]}
    assert rows == {
        "exchange": ["3", "33% [1%, 91%]", "1", "1", "3 PASS"],
        "same feed": ["2", "50% [1%, 99%]", "1", "1", "2 PASS"],
    }


@pytest.mark.parametrize("name", causes.GROWTHS)
def test_every_kind_runs_next_to_its_base(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[tuple[causes.Cause, tuple[str, ...]]]()

    def one_run(cause: causes.Cause, _: object, __: Path, options: tuple[str, ...]) -> Record:
        made.append((cause, options))
        return compared()

    monkeypatch.setattr(causes, "one_run", one_run)
    monkeypatch.setattr(log, "code_state", lambda: {"commit": "c", "trees": [], "dirty": False})
    causes.main(["--log", str(tmp_path / "log.jsonl"), "--each", "1", "--only", name])
    [(cause, options)] = made
    assert {f"--scaling-against=trainer:{causes.GROWTHS[name].base}", "--scaling-profile=full"} < set(options)
    assert (cause.trainer == causes.GROWTHS[name].base) == name.startswith("same")
    assert causes.GROWTHS[name].part in {*diagnose.CAUSES, causes.TAIL, ""}
    assert [line["kind"] for line in log.read_log(tmp_path / "log.jsonl")] == [name]
