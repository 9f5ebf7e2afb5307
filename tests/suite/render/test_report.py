"""The first screen answers "is it slower, by how much, why" with a sentence and two pictures, in every output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from suite.records.record import Record
from suite.render import html, markdown, terminal
from suite.render.document import Chart, Intervals, Stack
from suite.render.report import MOST, first, sentence
from suite.run import results
from tests.golden import RUNS, load, replay
from tests.support import records
from tests.support.pages import Page, first_run

LINES, COLUMNS = 24, 100
HERE = Path(__file__).parent / "recorded"  # the runs whose pictures docs/report.md shows, without their windows
# Of recorded runs what the first screen answers: is it slower, by how much, and why.
ANSWERS = {
    "slower": (
        "FAIL DelayedExchange-lenet-strong-2 is 160.8 % [144.4, 178.4] slower than ddp",
        "2.608 [2.444, 2.784]",
        "Against the base, exchange takes 101.4 [97.4, 105.5] ms a step longer",
    ),
    "all-pass": (
        "PASS No cell is slower than ddp by the tolerance of 5 %",
        "ddp-lenet-strong-2 1.005 [0.975, 1.035]",
        "Where the time went is not known: with a named base only cells that look slower have one",
    ),
    "two-hosts": (
        "lenet runs 1.62 times as fast on 2 devices as the plain trainer on one",
        "4 NO BASELINE. 2 sessions in 230 s on 2 hosts.",
        "Why 2 devices lose 77.5 [-162.0, 317.0] ms a step is not known after 2 sessions",
    ),
    "net-10-*": (
        "FAIL ddp-net-strong-2 is 10.3 % [8.5, 12.1] slower than v1.0",
        "1.103 [1.085, 1.121]",
        "Where the time went is not known",
    ),
    "matrix-10-*": (
        "INCONCLUSIVE 12 of 12 cells are not decided; none failed",
        "data_parallel-lenet-strong-2 1.114 [0.866, 1.434]",
        "Where the time went is not known",
    ),
    "script-20261128T161419Z*": (
        "PASS No cell is slower than v1.0 (1111111) by the tolerance of 5 %",
        "digits-digits-strong-2",
        "Where the time went is not known",
    ),
}


def recorded(name: str) -> Record:
    """Return a run that was recorded whole, or one that is judged again from its times (`tests/golden`)."""
    if (path := HERE / f"{name}.json").is_file():
        return Record.model_validate_json(path.read_text())
    [path] = RUNS.glob(f"{name}.json")
    return results.to_record(replay(load(path)))


def every() -> list[Record]:
    """Return all recorded runs, a record with every kind of part, and a first run."""
    whole = [recorded(path.stem) for path in sorted(HERE.glob("*.json"))]
    return [
        records.full(),
        first_run(),
        *whole,
        *(results.to_record(replay(load(path))) for path in RUNS.glob("*.json")),
    ]


def compared(**changes: Any) -> Record:
    """Return a run of four cells beside a base, one of them 20 % slower in its exchange."""
    cells = records.matrix(slowdown=records.interval(1.0, 0.01), checks=[records.check()])
    cells[1] |= {
        "outcome": "FAIL",
        "reason": "20.0% slower than the base",
        "slowdown": records.interval(1.2),
        "checks": [records.check(outcome="FAIL", ratio=1.2)],
        "waterfalls": [records.waterfall(exchange=0.0112), records.waterfall("base")],
    }
    return records.make(**({"against": "main", "cells": cells} | changes))


@pytest.mark.parametrize("name", ANSWERS)
def test_three_questions_are_answered_by_the_first_screen_of_a_recorded_run_alone(name: str) -> None:
    header = " ".join(Page(html.render(recorded(name))).one("header").text.split())
    assert [answer for answer in ANSWERS[name] if answer not in header] == []


def test_the_parts_of_a_recorded_step_are_titles_of_the_picture() -> None:
    titles = [element.text for element in Page(html.render(recorded("slower"))).all("title")]
    assert {"ideal 62.9 [60.5, 65.3] ms", "exchange 99.3 [87.2, 111.4] ms"} <= set(titles)


def test_the_cause_of_a_fail_is_in_both_pictures_of_the_page_and_in_words() -> None:
    header = Page(html.render(compared())).one("header").text
    assert "ddp-lenet-strong-2 is 20.0 % [17.6, 22.4] slower than main" in header
    assert "exchange 11.2 [9.0, 13.4] ms" in header
    assert "exchange 5.6 [4.5, 6.7] ms" in header
    assert "ddp-lenet-strong-2: the exchange costs 11.2 ms a step" in header
    titles = [element.text for element in Page(html.render(compared())).all("title")[1:]]
    assert "exchange 11.2 [9.0, 13.4] ms" in titles


@pytest.mark.parametrize("plain", [False, True])
def test_it_has_at_most_24_lines_of_100_columns_but_for_commands(plain: bool) -> None:
    for record in every():
        lines = list(terminal.first_screen(first(record), plain=plain))
        lines = [line for text in lines for line in text.split("\n")]
        assert len(lines) <= LINES, lines
        assert [line for line in lines if len(line) > COLUMNS and not line.startswith("    ")] == []


def test_a_terminal_without_unicode_draws_in_ascii() -> None:
    shown = terminal.render(compared(), 160, color=False, plain=True)
    assert re.search(r"ddp-lenet-strong-2 +\| +: +-+o-+ +1\.200", shown)
    assert not re.search("[─●█▓]", shown)
    assert [terminal.draws(encoding) for encoding in ("utf-8", "ascii", "latin-1", None, "no such")] == [
        True, False, False, True, False,
    ]  # fmt: skip


class TestSentence:
    """One sentence for each kind of outcome."""

    def test_others_that_fail_too_are_counted(self) -> None:
        cells = records.matrix(
            outcome="FAIL", slowdown=records.interval(1.1), checks=[records.check(outcome="FAIL", ratio=1.1)]
        )
        cells[2]["checks"] = [records.check(outcome="FAIL", ratio=1.3)]
        text = sentence(records.make(against="main", cells=cells))
        assert text == "ddp-lenet-weak-1 is 30.0 % [27.4, 32.6] slower than main, and 3 other cells fail too"

    def test_a_slow_drift_is_measured_against_the_pinned_run(self) -> None:
        drift = records.check(rule="drift", against="commit abc1234", outcome="FAIL", ratio=1.08)
        cell = records.cell(outcome="FAIL", slowdown=records.interval(1.01), checks=[records.check(), drift])
        text = sentence(records.make(cells=[cell]))
        assert text == "ddp-lenet-strong-1 is 8.0 % [5.8, 10.2] slower than commit abc1234"

    def test_cells_without_a_base_are_not_said_to_be_as_fast(self) -> None:
        cells = [records.cell(outcome="PASS"), records.cell(world_size=2)]
        assert sentence(records.make(cells=cells)).startswith("None of the 1 cells that have a base is slower than")

    @pytest.mark.parametrize(
        ("cell", "said"),
        [
            ({"outcome": "FAIL", "reason": "accuracy 0.120 lower"}, "ddp-lenet-strong-1: accuracy 0.120 lower"),
            ({"outcome": "ERROR"}, "ddp-lenet-strong-1 could not be measured"),
            ({"outcome": "INCONCLUSIVE"}, "1 of 1 cell is not decided; none failed"),
            ({"outcome": "PASS"}, "No cell is slower than the accepted runs by the tolerance of 5 %"),
        ],
    )
    def test_each_outcome_has_its_own(self, cell: dict[str, Any], said: str) -> None:
        assert sentence(records.make(cells=[records.cell(**cell)])) == said


class TestPictures:
    """What was asked decides which picture it is."""

    def test_beside_a_base_the_worst_cells_come_first_and_twelve_are_shown(self) -> None:
        cells = [
            records.cell(id=f"c{n}", trainer=f"t{n}", outcome="PASS", slowdown=records.interval(1 + n / 100))
            for n in range(20)
        ]
        cells[3] |= {"outcome": "FAIL"}
        picture, *_ = first(records.make(cells=cells)).pictures
        assert isinstance(picture, Intervals)
        assert [row.name for row in picture.rows][:3] == ["c3", "c19", "c18"]
        assert (len(picture.rows), picture.left_out) == (MOST, 8)
        assert picture.rules.at == (1.0, 1.05)

    def test_a_cell_that_could_not_be_measured_has_a_row_without_a_dot(self) -> None:
        cells = records.matrix(slowdown=records.interval(1.0))
        cells[0] |= {"outcome": "ERROR", "slowdown": None}
        picture, *_ = first(records.make(cells=cells)).pictures
        assert isinstance(picture, Intervals)
        assert (picture.rows[0].span, picture.rows[0].text) == (None, "not measured")

    def test_without_a_base_it_is_the_speed_up_and_where_the_time_of_the_worst_cell_went(self) -> None:
        chart, stack = first(first_run()).pictures
        assert isinstance(chart, Chart)
        assert {series.name for series in chart.series} >= {"ideal", "ddp, strong", "ddp, weak"}
        assert isinstance(stack, Stack)
        assert stack.title == "Where the time of scratch-lenet-weak-2 went", "it loses the largest share"

    def test_on_one_device_it_is_the_speed(self) -> None:
        picture, *_ = first(records.make(cells=[records.cell()])).pictures
        assert isinstance(picture, Intervals)
        assert picture.rows[0].text == "4,600 samples/s"

    def test_a_run_of_nothing_has_none(self) -> None:
        assert first(records.make(cells=[], sessions=[])).pictures == ()


def test_the_parts_of_a_stacked_bar_add_up_to_its_total() -> None:
    _, stack = first(compared()).pictures
    assert isinstance(stack, Stack)
    for bar in stack.bars:
        assert sum(piece.size for piece in bar.pieces) == pytest.approx(float(bar.total.split()[0]), rel=0.01)


def test_warnings_and_broken_hardware_come_before_the_pictures() -> None:
    cells = records.matrix()
    cells[1]["cautions"] = ["its tail grew", "more"]
    record = records.make(cells=cells, machine=records.MACHINE | {"problem": "NVML's GPU 1 does not answer"})
    expected = (
        "Hardware: NVML's GPU 1 does not answer",
        "Warnings: ddp-lenet-strong-2: its tail grew (and 1 more, below)",
    )
    assert first(record).notes == expected
    for text in (terminal.render(record, 160, color=False), markdown.render(record), html.render(record)):
        assert all(line.replace("'", "&#39;") in text or line in text for line in expected)


def test_pages_under_docs_show_the_first_screens() -> None:
    """Pictures of a first run, all PASS, a FAIL with its cause, and a run on two hosts."""
    shown = re.findall(r"\]\((images/[\w-]+\.png)\)", Path("docs/report.md").read_text())
    assert len(shown) == 4
    assert all((Path("docs") / path).is_file() for path in shown)
