"""The table and the summary say what the record says, and nothing in a record becomes markup."""

from __future__ import annotations

import re

from suite.render import figures, markdown, terminal
from suite.render.html import report as html
from tests.support import records


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
    # The warm-up left out, an epoch of 1 s over 1,437 samples is 2 s for an epoch of 2,874.
    assert figures.closing_lines(record) == ["ddp lenet: test acc 0.97, 2.0 sec/epoch on [cpu]"]
    nets = [records.accuracy(train_s=[9.0, 1.0]), records.accuracy(mode="weak", loss=[2.0, 0.25])]
    both = records.make(
        workloads={"lenet": own.model_dump()}, epoch_samples={"lenet": 2874}, accuracies=nets, cells=records.matrix()
    )
    assert figures.closing_lines(both) == [
        "ddp lenet: test acc 0.97, 2.0 sec/epoch on [cpu, cpu]",
        "ddp lenet weak: loss 0.250, test acc 0.97, 2.0 sec/epoch on [cpu, cpu]",
    ]


def test_the_summary_shows_each_epochs_time_and_loss_beside_its_accuracy() -> None:
    net = records.accuracy(mode="weak", batch=64, lr=0.15, train_s=[14.2, 10.1], loss=[0.612, None])
    text = markdown.render(records.make(accuracies=[net]))
    assert (
        "| ddp | lenet | 2 | weak, batch 64, lr 0.15 | digits | 2 | 0.500 (14.2 s, loss 0.612), 0.970 (10.1 s) |"
        in text
    )


def test_an_empty_accuracy_says_why_in_every_output() -> None:
    why = "70 s of training do not fit into the budget"
    cells = records.matrix(accuracy_note=why)
    for cell in cells[:2]:
        cell |= {"accuracy": 0.97, "accuracy_note": ""}
    record = records.make(cells=cells)
    line = f"no accuracy for ddp-lenet-weak-1, ddp-lenet-weak-2: {why}"
    assert line in terminal.render(record, 160, color=False)
    assert f"- {line}" in markdown.render(record)
    assert line in html.render(record)


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


def test_what_a_document_prints_stands_beside_the_cell_that_is_the_same_run() -> None:
    """LeNet on two devices at weak scaling is the notebook's (2, 512, .3), whichever workload it came from."""
    shown = {cell.id: figures.published(record, cell) for record in [records.full()] for cell in record.cells}
    assert shown["ddp-lenet-weak-1"] == shown["ddp-lenet-strong-1"] == shown["ddp-lenet-strong-2"] == "2.6 s"
    assert shown["ddp-lenet-weak-2"] == "2.4 s"
    assert shown["ddp-lenet-weak-4"] == shown["ddp-lenet-strong-4"] == "-"
