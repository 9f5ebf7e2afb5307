"""`docs.evidence.grown`: what is kept of a run, and what counts as said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docs.evidence import causes, grown, log
from docs.evidence.causes import Cause
from suite.records.record import Record
from suite.verdict.diagnose import CAUSES
from tests.support import records

EXCHANGE = "exchange takes 0.9 ms [0.2, 1.6] a step longer than the base's (11% longer), after 12 sessions; the cell"
SLOW_TAIL = "a slow tail grew: the slowest tenth of its rounds is 9.0% slower than the base's next to them"


def record(**changes: Any) -> Record:
    falls = [records.waterfall(side=side) for side in ("candidate", "base")]
    content = {"waterfalls": falls, "slowdown": records.interval(1.02), "outcome": "PASS"}
    return records.make(cells=[records.cell(**content | changes)])


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, set()),
        ({"cautions": [EXCHANGE]}, {"exchange"}),
        ({"cautions": [EXCHANGE, SLOW_TAIL]}, {"exchange", grown.TAIL}),
        ({"cautions": ["efficiency is 3.0% below the base's: gap widened, nothing slower"]}, set()),
    ],
)
def test_what_is_said_to_have_grown_is_a_part_or_the_tail(changes: dict[str, Any], parts: set[str]) -> None:
    line = grown.line_of("exchange", record(**changes))
    assert grown.said(line) == parts
    assert (line["outcome"], line["ratio"], line["taken_apart"]) == ("PASS", 1.02, 4)
    assert line["sides_ms"]["candidate"]["exchange"] == line["sides_ms"]["base"]["exchange"]


def test_only_a_failed_cells_sentence_says_what_grew() -> None:
    sentence = "Against the base, feed takes 1.0 ms [0.5, 1.5] a step longer; the whole takes 1.2 ms [0.9, 1.5] a step"
    falls = [records.waterfall(side="candidate", sentence=sentence)]
    assert grown.said(grown.line_of("feed", record(outcome="FAIL", waterfalls=falls))) == {"feed"}
    assert grown.said(grown.line_of("feed", record(waterfalls=falls))) == set()


def test_the_table_counts_what_was_said_alone_and_what_was_wrong() -> None:
    both = grown.line_of("exchange", record(cautions=[EXCHANGE, SLOW_TAIL]))
    kept = [both, grown.line_of("exchange", record(cautions=[EXCHANGE])), grown.line_of("exchange", record())]
    kept += [grown.line_of("same feed", record()), grown.line_of("same feed", record(cautions=[EXCHANGE]))]
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[1:6] for row in grown.table(kept).splitlines()[2:]}
    assert rows == {
        "exchange": ["3", "33% [1%, 91%]", "1", "1", "3 PASS"],
        "same feed": ["2", "50% [1%, 99%]", "1", "1", "2 PASS"],
    }


@pytest.mark.parametrize("name", grown.KINDS)
def test_every_kind_runs_next_to_its_base(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[tuple[Cause, tuple[str, ...]]]()

    def one_run(cause: Cause, _: object, __: Path, options: tuple[str, ...]) -> Record:
        made.append((cause, options))
        return record()

    monkeypatch.setattr(causes, "one_run", one_run)
    monkeypatch.setattr(log, "code_state", lambda: {"commit": "c", "trees": [], "dirty": False})
    grown.main(["--log", str(tmp_path / "log.jsonl"), "--each", "1", "--only", name])
    [(cause, options)] = made
    assert {f"--scaling-against=trainer:{grown.KINDS[name].base}", "--scaling-profile=full"} < set(options)
    assert (cause.trainer == grown.KINDS[name].base) == name.startswith("same")
    assert grown.KINDS[name].part in {*CAUSES, grown.TAIL, ""}
    assert [line["kind"] for line in log.read_log(tmp_path / "log.jsonl")] == [name]
