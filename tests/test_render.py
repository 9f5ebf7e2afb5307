"""The table and the summary say what the record says, and nothing in a record becomes markup."""

from __future__ import annotations

import re

from suite.render import figures, markdown, terminal
from tests import records


def test_the_table_shows_figures_with_their_intervals() -> None:
    text = terminal.render(records.make(), 160, color=False)
    assert "13 [12.5, 13.5]" in text
    assert "0.80 [0.75, 0.85]" in text
    assert "0.970" in text
    assert "2.6 s" in text, "the documents' own figure stands beside ours"
    assert "NO BASELINE: 2 cells; accept a run like this one" in text
    assert "\x1b" not in text


def test_colours_add_nothing_to_the_words() -> None:
    assert "\x1b[" in terminal.render(records.make(), 160, color=True)


def test_a_narrow_terminal_keeps_the_words_whole() -> None:
    assert "NO BASELINE" in terminal.render(records.make(), 60, color=False)


def test_oversubscription_is_marked_in_every_output() -> None:
    record = records.make(cells=[records.cell(oversubscribed=True)])
    assert "(oversubscribed)" in terminal.render(record, 160, color=False)
    assert "(oversubscribed)" in markdown.render(record)


def test_the_summary_begins_with_the_verdicts_and_their_cells() -> None:
    text = markdown.render(records.full())
    assert text.startswith("# Scaling: 1 FAIL, 1 ERROR, 1 INCONCLUSIVE, 1 NO BASELINE, 8 PASS\n")
    assert "- **Verdict** FAIL: ddp-lenet-strong-2: why it is FAIL\n" in text


def test_the_summary_of_a_first_run_has_figures_and_versions() -> None:
    text = markdown.render(records.make())
    assert "| 0.80 [0.75, 0.85] |" in text
    assert "torch 2.15.0" in text
    assert "Timed on lenet: synthetic (60,000 samples)." in text


def test_an_interrupted_run_says_so_first() -> None:
    assert "Cut short" in markdown.render(records.make(interrupted=True)).splitlines()[2]


def test_markup_in_a_record_stays_text() -> None:
    hostile = "<script>alert(1)</script>|`x`"
    record = records.make(cells=[records.cell(trainer=hostile, reason=hostile, outcome="ERROR", details="```\n<b>")])
    text = markdown.render(record)
    fenced = re.compile(r"```.*?```", re.DOTALL)
    assert "<script>" not in fenced.sub("", text), "and in a fence it is text"
    assert "&lt;script&gt;" in text
    assert "[bold" not in terminal.render(record, 160, color=False)
    assert text.count("```") == 6, "neither commands nor details nor settings can close their own fence"


def test_the_books_closing_line_stands_for_runs_on_their_own_dataset() -> None:
    lenet = records.make().workloads["lenet"]
    own = lenet.model_copy(update={"accuracy": lenet.accuracy.model_copy(update={"dataset": "auto"})})  # type: ignore[union-attr]
    record = records.make(workloads={"lenet": own.model_dump()}, epoch_samples={"lenet": 2874})
    assert figures.closing_lines(records.make()) == []
    # Two epochs of 1 s each over 1,437 samples are 2 s for an epoch of 2,874.
    assert figures.closing_lines(record) == ["ddp lenet: test acc 0.97, 2.0 sec/epoch on [cpu]"]


def test_the_torch_of_each_side_is_named_where_they_differ() -> None:
    base = {"side": "base", "kind": "python", "label": "python3.12", "versions": {"torch": "2.13.0"}}
    compared = records.make(against="python3.12", bases=[base])
    assert figures.compared_with(compared) == "python3.12 (torch 2.13.0 against 2.15.0), in the same sessions"
    same = records.make(against="ddp", bases=[{**base, "versions": {"torch": "2.15.0"}}])
    assert figures.compared_with(same) == "ddp, in the same sessions"
    assert figures.compared_with(records.make()) == "the accepted baseline"


def test_a_summary_shows_what_each_rule_found_and_what_does_not_count() -> None:
    check = {
        "rule": "accuracy",
        "against": "1 device",
        "outcome": "INCONCLUSIVE",
        "reason": "one | pair",
        "counts": False,
    }
    summary = markdown.render(records.make(cells=[records.cell(checks=[check])]))
    assert "| ddp-lenet-strong-1 | accuracy | 1 device | INCONCLUSIVE, shown only | one \\| pair |" in summary


def test_the_gravest_outcome_stands_first_in_the_headline() -> None:
    cells = [records.cell(outcome=outcome) for outcome in ("PASS", "ERROR", "PASS", "FAIL")]
    assert figures.headline(records.make(cells=cells)) == "1 FAIL, 1 ERROR, 2 PASS"
    assert figures.headline(records.make(cells=[])) == "no cells"


def test_where_the_time_went_is_a_sentence_in_every_output() -> None:
    record = records.full()
    assert "- ddp-lenet-strong-2: the exchange costs 11.2 ms a step\n" in markdown.render(record)
    assert "- ddp-lenet-strong-2 (base): the exchange costs 5.6 ms a step\n" in markdown.render(record)
    assert "ddp-lenet-strong-2: the exchange costs 11.2 ms a step" in terminal.render(record, 160, color=False)
    assert "Where the time went" not in markdown.render(records.make())


def test_the_summary_says_where_to_stop() -> None:
    assert "- ddp lenet strong: Stop at k = 2:" in markdown.render(records.full())


def test_numbers_beyond_reading_become_powers_of_ten() -> None:
    assert figures.number(4_600.0, ",.0f") == "4,600"
    assert figures.number(1e308, ",.0f") == "1e+308"
    assert figures.number(10**400, "d") == "inf"
    assert figures.number(-(10**400), "d") == "-inf"


def test_causes_that_could_not_be_told_apart_share_a_name() -> None:
    bars = records.full().cells[1].waterfalls[0].bars
    names = [figures.causes(bar) for bar in bars]
    assert names == ["small batch", "contention + imbalance, not separable", "overhead", "exchange", "feed"]


def test_settings_cannot_break_out_of_their_fence() -> None:
    text = markdown.render(records.make(settings=["a\n```\n<script>"], neighbours=["x"]))
    assert text.count("```") == 4
    assert text.index("```") < text.index("<script>") < text.rindex("```")
