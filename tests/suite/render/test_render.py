"""Figures, terminal and summary say what the record says; on the page of a GitHub job the summary is never too long."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from suite.render import figures, html, markdown, terminal
from suite.render.markdown import LIMIT_BYTES, VARIABLE, fit, publish
from suite.render.sections.cells import table
from tests.support import records


def in_terminal(record: Any) -> str:
    return terminal.render(record, 160, color=False)


def test_the_table_shows_figures_with_their_intervals() -> None:
    text = in_terminal(records.make())
    for figure in ("13 [12.5, 13.5]", "0.80 [0.75, 0.85]", "0.970", "2.6 s"):
        assert figure in text
    assert "NO BASELINE: 2 cells; accept a run like this one" in text


def test_colours_add_nothing_to_the_words_and_a_narrow_terminal_keeps_words_whole() -> None:
    assert "\x1b[" in terminal.render(records.make(), 160, color=True)
    text = terminal.render(records.make(), 60, color=False)
    assert "\x1b" not in text
    assert "NO BASELINE" in text


def test_columns_that_are_empty_in_all_rows_are_left_out() -> None:
    first, compared = records.make(), records.make(cells=[records.cell(outcome="PASS")])
    elsewhere = {"tokens/s", "test loss", "TFLOP/s a device", "time / base"}
    of_first, of_compared = (set(table(record, record.cells).columns) for record in (first, compared))
    assert {*figures.COLUMNS} - of_first == {"verdict", "speed-up"} | elsewhere
    assert {*figures.COLUMNS} - of_compared == {"efficiency", "speed-up", "accuracy"} | elsewhere


def test_texts_have_their_tokens_and_their_loss_in_every_output() -> None:
    """Beside images, which have neither."""
    figures_of: dict[str, Any] = {"tokens_per_s": records.interval(39_802.0), "test_loss": 1.7041, "accuracy": 0.658}
    figures_of["device_flop_per_s"] = records.interval(1.5e14)
    trained = records.accuracy(workload="gpt-tiny", test_loss=(2.1255, None, 1.7041), per_epoch=(0.5, 0.6, 0.658))
    cells = [records.cell(), records.cell(id="ddp_tokens-gpt-tiny-strong-1", workload="gpt-tiny", **figures_of)]
    record = records.make(cells=cells, accuracies=[trained])
    for show in (in_terminal, markdown.render, html.render):
        text = show(record)
        assert all(part in text for part in ("tokens/s", "39,802", "test loss", "1.704 nats", "TFLOP/s", "150"))
    assert "4,600 samples/s, 39,802 tokens/s" in in_terminal(record)
    assert "test loss 2.126" in markdown.render(record)
    assert "test loss, nats" in html.render(record)
    assert "tokens/s" not in in_terminal(records.make())


def test_oversubscription_is_marked_in_every_output() -> None:
    record = records.make(cells=[records.cell(oversubscribed=True)])
    assert all("(oversubscribed)" in show(record) for show in (in_terminal, markdown.render, html.render))
    failed = records.collective(oversubscribed=True, points=[], error="rank 1: gone")
    record = records.make(cells=[], collectives=[failed])
    assert "gloo-2 (oversubscribed)" in in_terminal(record)
    assert "gloo, k = 2 (oversubscribed)" in markdown.render(record)
    swept = records.collective("ring", oversubscribed=True)
    page = html.render(records.make(cells=[], collectives=[failed, swept]))
    assert all(f"{part} (oversubscribed)" in page for part in ("all_reduce, k = 2", "all_reduce, gloo, k = 2", "ring"))
    assert "(oversubscribed)" not in html.render(records.full())


def test_oversubscribed_cells_are_marked_in_charts_and_costs_too() -> None:
    own = records.matrix(modes=("strong",), world_sizes=(1, 2, 4))
    own[2] |= {"oversubscribed": True, "efficiency": None}
    page = html.render(records.make(cells=own))
    assert "(oversubscribed at k = 4)" in page
    assert "<td>4 (oversubscribed)</td>" in re.sub(r"<td[^>]*>", "<td>", page)


def test_a_run_of_sweeps_alone_has_their_bandwidth_and_no_empty_table() -> None:
    record = records.make(cells=[], sessions=[], datasets={}, collectives=[records.collective()])
    for show in (in_terminal, markdown.render):
        text = show(record)
        assert "1 sweep of collectives" in text
        assert "0.994 GB/s of bus bandwidth" in text
        assert "sec/epoch" not in text
        assert "0 session" not in text


def test_trainers_with_the_same_class_name_have_names_of_their_own_in_every_output() -> None:
    cells = records.matrix(trainers=("a.py:Mine", "b.py:Mine"), accuracy=0.97)
    nets = [records.accuracy(trainer=f"{file}.py:Mine") for file in "ab"]
    record = records.make(cells=cells, accuracies=nets)
    for show in (in_terminal, markdown.render, html.render):
        assert not re.search(r"(?<![.:])Mine lenet", show(record)), show
        assert all(f"{name} lenet strong" in show(record) for name in ("a.Mine", "b.Mine")), show


def test_the_summary_begins_with_the_verdict_and_folds_every_section_but_the_cells() -> None:
    text = markdown.render(records.full(interrupted=True))
    assert text.startswith("# Scaling: ❌ FAIL: ddp-lenet-strong-2 is 20.0 % [17.6, 22.4] slower than main\n")
    assert "**Cut short: what follows was measured before the run was interrupted.**" in text
    assert "Timed on lenet: synthetic (60,000 samples)." in text
    assert re.findall("^## (.*)", text, re.MULTILINE) == ["Cells"]
    folds = re.findall("^<details><summary>(.*)</summary>", text, re.MULTILINE)
    order = (
        "About each cell", "Where the time went", "Speed-up and efficiency", "Accuracy", "Exchange", "The machine",
        "What each rule found", "What one step does", "Memory", "Raw samples",
    )  # fmt: skip
    assert [fold for fold in folds if fold in order] == list(order)
    for line in (
        "candidate: the exchange costs 11.2 ms a step\n",
        "ddp lenet strong: Stop at k = 2:",
        "| ddp-lenet-strong-2 | accuracy | 1 device | PASS, shown only | 1.010 [0.990, 1.030] |",
        "| ddp-lenet-strong-2 | base | all_reduce: 1, float32, 516.3 kB | 200 to 201 |",
        "- ddp-lenet-strong-4: rank 1 died\n",
        "torch 2.15.0",
        "Room check: editor (pid 7) uses 0.3 of a core",
    ):
        assert line in text
    assert "Where the time went" not in markdown.render(records.make())


def test_the_summary_has_twelve_rows_of_cells_and_intervals_as_bars_of_characters() -> None:
    cells = [
        records.cell(id=f"c{n}", trainer=f"t{n}", outcome="PASS", slowdown=records.interval(1.01)) for n in range(20)
    ]
    text = markdown.render(records.make(cells=cells))
    table = text[text.index("## Cells") : text.index("<details>")]
    assert table.count("\n| t") == 12
    assert "*8 more left out here; record.json has them.*" in table
    assert re.search(r"<code>[^<]*│[^<]*●[^<]*─[^<]*</code>", table)


@pytest.mark.parametrize("number", [120, 1_000])
def test_a_summary_fits_a_comment_on_a_pull_request_and_counts_what_it_left_out(number: int) -> None:
    """GitHub takes 65,536 characters. Every section keeps its first lines, with the gravest cells."""
    cells = [
        records.cell(id=f"t{n}-lenet-strong-2", trainer=f"t{n}", outcome="PASS", checks=[records.check()] * 9)
        for n in range(number)
    ]
    cells[-1] |= {"outcome": "FAIL", "waterfalls": [records.waterfall()]}
    cells[-2] |= {"outcome": "ERROR", "details": "rank 1: exit code 3\n" * 1_000}
    nets = [records.accuracy(trainer=f"t{n}") for n in range(number)]
    text = markdown.render(records.make(cells=cells, accuracies=nets, repeat=["-m", "scaling"]))
    assert 40_000 < len(text.encode()) <= markdown.MAX_BYTES
    assert text.count("<details>") == text.count("</details>")
    found = text[text.index("<summary>What each rule found") :]
    found = found[: found.index("</details>")]
    assert found.index(f"| t{number - 1}-lenet") < found.index(f"| t{number - 2}-lenet") < found.index("| t0-lenet")
    assert re.search(r"\*\d+ more left out here; record.json has them\.\*", found)
    for whole in (
        "check the gradients",
        "see the FAIL again",
        "exchange costs 5.6 ms",
        "rank 1: exit code 3",
        "Test CPU",
    ):
        assert whole in text


def test_markup_in_a_record_stays_text() -> None:
    hostile = "<script>alert(1)</script>|`x`"
    cells = [records.cell(trainer=hostile, reason=hostile, outcome="ERROR", details="```\n<b>")]
    record = records.make(cells=cells, settings=["a\n```\n<script>"])
    text = markdown.render(record)
    fenced = re.compile(r"```.*?```", re.DOTALL)
    assert text.count("```") == 10, "neither commands nor details nor settings can close their own fence"
    assert "<script>" not in fenced.sub("", text)
    assert "&lt;script&gt;" in text
    assert "[bold" not in in_terminal(record)


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("[x](https://a.b)", "[x\\](https:&#8203;//a.b)"),
        ("![x](y)", "![x\\](y)"),
        ("[x][y] [x]: z [x]", "[x\\][y] [x\\]: z [x]"),
        ("\\](y) \\|", "&#92;\\](y) &#92;\\|"),
        ("@someone a@b.c #12", "@&#8203;someone a@&#8203;b.c #&#8203;12"),
        ("WWW.a.b", "WWW&#8203;.a.b"),
        ("*a* ~~b~~ __c__ _d_", "\\*a\\* \\~\\~b\\~\\~ \\_\\_c\\_\\_ \\_d\\_"),
        ("13.0 [12.1, 13.9] all_reduce a/b.py:C", "13.0 [12.1, 13.9] all_reduce a/b.py:C"),
        ("$x$ costs $5", "\\$x\\$ costs \\$5"),
        ("# BIG", "\\# BIG"),
        ("- x - y", "\\- x - y"),
        ("+ x", "\\+ x"),
        ("> x", "&gt; x"),
        ("12. x", "12\\. x"),
        ("3) x", "3\\) x"),
        ("---", "\\---"),
        ("==", "\\=="),
        ("    x", "x"),
        ("-0.030 to +0.010", "-0.030 to +0.010"),
    ],
)
def test_no_text_of_a_record_is_a_link_an_image_a_mention_a_formula_or_a_block(hostile: str, shown: str) -> None:
    """A summary becomes a comment on a pull request, where such text would call people and fetch pictures."""
    assert markdown.text(hostile) == shown
    assert shown in markdown.render(records.make(neighbours=[hostile]))


def test_nets_that_were_trained_on_their_own_dataset_have_the_closing_line_of_the_book() -> None:
    lenet = records.LENET
    assert lenet.accuracy is not None
    own = lenet.model_copy(update={"accuracy": lenet.accuracy.model_copy(update={"dataset": "auto"})})
    nets = [records.accuracy(train_s=[9.0, 1.0]), records.accuracy(mode="weak", loss=[2.0, 0.25])]
    changes = {"epoch_samples": {"lenet": 2874}, "accuracies": nets, "cells": records.matrix()}
    # Without the warm-up, an epoch of 1 s over 1,437 samples is 2 s for an epoch of 2,874.
    assert figures.closing_lines(records.make(workloads={"lenet": own.model_dump()}, **changes)) == [
        "ddp lenet: test acc 0.97, 2.0 sec/epoch on [cpu, cpu]",
        "ddp lenet weak: loss 0.250, test acc 0.97, 2.0 sec/epoch on [cpu, cpu]",
    ]
    alone = {**changes, "cells": records.matrix(world_sizes=(2,)), "accuracies": [records.accuracy(world_size=1)]}
    assert figures.closing_lines(records.make(workloads={"lenet": own.model_dump()}, **alone)) == [
        "ddp lenet: test acc 0.97, 2.0 sec/epoch on [cpu]",
    ], "the pair's net on one device has no cell"
    assert figures.closing_lines(records.make(**changes)) == []


def test_nets_whose_ranks_shared_devices_are_marked() -> None:
    cells = [cell | {"oversubscribed": cell["world_size"] == 2} for cell in records.matrix()]
    record = records.make(cells=cells, accuracies=[records.accuracy(), records.accuracy(world_size=1)])
    assert [row[0] for row in figures.nets(record)] == ["ddp (oversubscribed)", "ddp"]
    page = html.render(record)
    assert "k = 2 (oversubscribed)" in page
    assert "k = 1 (oversubscribed)" not in page


def test_the_summary_shows_time_and_loss_of_each_epoch() -> None:
    net = records.accuracy(mode="weak", batch=64, lr=0.15, train_s=[14.2, 10.1], loss=[0.612, None])
    text = markdown.render(records.make(accuracies=[net]))
    assert "| ddp | lenet | 2 | weak, batch 64, lr 0.15 | 1 | digits | 1,437 | 360 | 10.1 | whole |" in text
    assert "| 0.500 (14.2 s, loss 0.612), 0.970 (10.1 s) |" in text


@pytest.mark.parametrize(
    ("field", "what", "value"), [("accuracy", "accuracy", 0.97), ("speedup", "speed-up", records.interval(1.6))]
)
def test_a_missing_figure_has_its_reason_in_every_output(field: str, what: str, value: object) -> None:
    why = "70 s of training do not fit into the budget"
    cells = records.matrix(**{field: None, "missing": [records.missing(field, why)]})
    for cell in cells[:2]:
        cell |= {field: value, "missing": []}
    record = records.make(cells=cells)
    for show in (in_terminal, markdown.render, html.render):
        assert f"no {what} for ddp-lenet-weak-1, ddp-lenet-weak-2: {why}" in show(record)


def test_the_torch_of_each_side_is_named_where_they_differ() -> None:
    base = {"side": "base", "kind": "python", "label": "python3.12", "versions": {"torch": "2.13.0"}}
    older, same = base, base | {"versions": {"torch": "2.15.0"}}
    expected = "python3.12 (torch 2.13.0 against 2.15.0), in the same sessions"
    assert figures.compared_with(records.make(against="python3.12", bases=[older])) == expected
    assert figures.compared_with(records.make(against="ddp", bases=[same])) == "ddp, in the same sessions"
    accepted = records.make(cells=[records.cell(outcome="INCONCLUSIVE", checks=[records.check(rule="stored")])])
    assert figures.compared_with(accepted) == "the accepted baseline"


@pytest.mark.parametrize("rules", [[], ["floor", "accuracy"]])
def test_an_error_or_a_floor_in_a_first_run_is_no_comparison(rules: list[str]) -> None:
    failed = records.cell(outcome="FAIL" if rules else "ERROR", checks=[records.check(rule=rule) for rule in rules])
    first = records.make(cells=[failed, records.cell(world_size=2)])
    for show in (in_terminal, markdown.render, html.render):
        assert "ompared with nothing yet" in show(first)


def test_outcomes_and_numbers_in_words() -> None:
    assert figures.headline(["PASS", "ERROR", "PASS", "FAIL"]) == "1 FAIL, 1 ERROR, 2 PASS", "the gravest first"
    assert figures.headline([]) == "no cells"
    assert [figures.number(value, ",.0f") for value in (4_600.0, 1e100)] == ["4,600", "1e+100"]
    assert [figures.number(value, "d") for value in (12, -(10**19))] == ["12", "-1e+19"]
    assert [figures.number(value, ".3g") for value in (999.9, 2_093, 2e-5)] == ["1,000", "2,090", "2e-05"]


WHOLE = Path("reports/machine/runs/now/summary.md")
CUT = "**Cut here: GitHub shows 1024 KiB of a step. All of it is in summary.md.**\n"
STACKS = "\n".join(f"## rank 0, line {number}: <details> and | are text here" for number in range(200))


@pytest.fixture(scope="module")
def summary() -> str:
    """A summary with every kind of block: tables, a fold with a fence in it, a fence, lists."""
    cells = [records.cell(id=f"ddp-lenet-strong-{k}", world_size=k) for k in range(1, 40)]
    return markdown.render(records.make(cells=[*cells, records.cell(id="broken", outcome="ERROR", details=STACKS)]))


def test_without_a_job_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert publish("# Scaling\n", WHOLE, {}) == publish("# Scaling\n", WHOLE, {VARIABLE: ""}) == ""
    assert not list(tmp_path.iterdir())


def test_a_summary_is_appended_to_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summary: str) -> None:
    job = tmp_path / "job.md"
    job.write_text("# Built\nin a minute")
    monkeypatch.setenv(VARIABLE, str(job))
    for text in (summary, "half \ud800 a pair\n"):
        assert publish(text, WHOLE) == ""
    assert job.read_text() == f"# Built\nin a minute\n{summary}\nhalf ? a pair\n"


def test_a_long_summary_is_cut_to_what_github_shows_and_says_so(tmp_path: Path, summary: str) -> None:
    job = tmp_path / "job.md"
    job.write_text("x" * (LIMIT_BYTES - 3000))
    assert publish(summary, WHOLE, {VARIABLE: str(job)}) == ""
    assert LIMIT_BYTES - 3000 < job.stat().st_size <= LIMIT_BYTES
    assert job.read_text().endswith(CUT)


def test_a_summary_is_cut_only_between_its_sections(summary: str) -> None:
    whole, kept = summary.encode(), set()
    for most_bytes in range(200, len(whole), 37):
        text = fit(summary, most_bytes, WHOLE)
        assert len(text) <= most_bytes
        if text:
            begun, _, _ = text.decode().partition(CUT)
            assert text.decode() == begun + CUT
            kept.add(begun)
    for begun in kept:  # the lines of the stacks look like headings and folds, and are none
        outside = re.sub("```.*?```", "", begun, flags=re.DOTALL)
        assert summary.startswith(begun)
        assert "```" not in outside
        assert outside.count("<details>") == outside.count("</details>")
    assert len(kept) >= 4
    assert fit(summary, len(whole), WHOLE) == whole


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("full.md", "1048576 of 1048576 bytes are used"),
        (".", "Is a directory"),
        ("none/job.md", "No such file or directory"),
        ("/dev/full", "No space left on device"),
    ],
)
def test_a_summary_that_cannot_be_written_is_a_sentence_and_no_failure(
    tmp_path: Path, summary: str, path: str, why: str
) -> None:
    (tmp_path / "full.md").write_text("x" * LIMIT_BYTES)
    job = tmp_path / path
    assert publish(summary, WHOLE, {VARIABLE: str(job)}) == f"{VARIABLE} {job}: {why}; the summary is only in {WHOLE}"
    assert (tmp_path / "full.md").stat().st_size == LIMIT_BYTES
