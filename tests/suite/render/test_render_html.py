"""The report says what the record says, to everybody, and nothing in a record becomes markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from suite.records import baselines
from suite.records.baselines import Baseline
from suite.records.record import Record, read_model
from suite.render import figures, markdown, terminal
from suite.render.html import environment, render
from suite.render.html.bounds import CHARACTERS, FOLDED, SHOWN, bounded
from suite.render.lead import title
from tests.support import records
from tests.support.pages import Page
from tests.support.project import REPOSITORY

REAL = sorted(REPOSITORY.glob("reports/*/runs/*/record.json"))
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)' x='",
    "</title></style></textarea><b>",
    "{{ 7 * 7 }}{% include 'style.css' %}",
    "]]><!--",
    "\ud800\0\x1b[31m\u202e",
)


def accepted(record: Record) -> Baseline:
    """A baseline that holds a run which measured the same a week before, with an older torch on another host."""
    environment = record.environment.model_copy(update={"versions": {"torch": "2.13.0", "python": "3.12.1"}})
    machine = record.machine.model_copy(update={"host": "fedcba"})
    passed = [cell.model_copy(update={"outcome": "PASS"}) for cell in record.cells]
    changes = {"run_id": "week-0", "environment": environment, "machine": machine, "cells": tuple(passed)}
    empty = Baseline(machine_key=record.machine.key)
    return baselines.accept(empty, record.model_copy(update=changes), slower=False)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(records.full()))


class TestForEverybody:
    """Structure that screen readers, keyboards and phones rely on."""

    def test_it_is_well_formed_and_says_its_language(self, page: Page) -> None:
        assert page.one("html").attributes["lang"] == "en"
        assert page.all("title")[0].text.startswith("Scaling: 1 FAIL")
        with pytest.raises(ValueError, match="closes"):
            Page("<p><b></p></b>")

    def test_every_part_of_the_page_is_in_a_landmark(self, page: Page) -> None:
        for tag in ("header", "nav", "main", "footer"):
            assert page.one(tag)
        for section in page.all("section"):
            named = section.attributes["aria-labelledby"]
            assert any(element.attributes.get("id") == named for element in page.all("h2"))

    def test_headings_do_not_skip_a_level(self, page: Page) -> None:
        levels = [int(element.tag[1]) for element in page.all("h1", "h2", "h3", "h4", "h5", "h6")]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))

    def test_every_table_says_what_it_is_and_what_its_headers_head(self, page: Page) -> None:
        assert len(page.all("table")) == len(page.all("caption"))
        assert {element.attributes.get("scope") for element in page.all("th")} == {"row", "col"}

    def test_every_table_scrolls_in_a_box_that_the_keyboard_reaches(self, page: Page) -> None:
        boxes = [e for e in page.elements if "scroll" in e.attributes.get("class", "").split()]
        assert len(boxes) == len(page.all("table"))
        assert all(e.attributes["tabindex"] == "0" and e.attributes["aria-label"] for e in boxes)

    def test_the_first_link_skips_to_the_content(self, page: Page) -> None:
        assert page.all("a")[0].attributes["href"] == "#" + page.one("main").attributes["id"]

    def test_names_are_given_once_and_links_within_the_page_lead_somewhere(self, page: Page) -> None:
        ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
        assert len(ids) == len(set(ids))
        inside = [a.attributes["href"][1:] for a in page.all("a") if a.attributes["href"].startswith("#")]
        assert set(inside) <= set(ids)

    def test_pictures_have_a_name_or_are_hidden_beside_their_numbers(self, page: Page) -> None:
        for svg in page.all("svg"):
            assert svg.attributes.get("role") == "img" or svg.attributes.get("aria-hidden") == "true"

    def test_a_verdict_is_a_word_and_a_symbol_beside_its_colour(self, page: Page) -> None:
        badges = {e.text.strip() for e in page.all("span") if e.attributes.get("class", "").startswith("badge")}
        assert badges == {"✓ PASS", "✗ FAIL", "? INCONCLUSIVE", "○ NO BASELINE", "! ERROR"}

    def test_it_loads_nothing_and_runs_nothing(self, page: Page) -> None:
        assert not page.all("script", "img", "iframe", "object", "embed", "form", "base")
        assert "src" not in {name for element in page.elements for name in element.attributes}
        addresses = [e.attributes["href"] for e in page.elements if "href" in e.attributes]
        outside = {address for address in addresses if not address.startswith("#")}
        assert outside == {"data:,", "../../index.html", "record.json", "summary.md"}
        style = page.one("style").text
        assert "url(" not in style
        assert "@import" not in style
        policy = next(e for e in page.all("meta") if e.attributes.get("http-equiv") == "Content-Security-Policy")
        assert policy.attributes["content"].startswith("default-src 'none'")


class TestColours:
    """Contrast by WCAG 2.2, 1.4.3: at least 4.5 to 1 for text."""

    @staticmethod
    def contrast(one: str, other: str) -> float:
        def luminance(colour: str) -> float:
            parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
            red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue

        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    @staticmethod
    def themes() -> list[dict[str, str]]:
        style = (Path(environment.__file__).parent / "style.css").read_text()
        blocks = re.findall(r":root \{([^}]*)\}", style)
        return [dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", block)) for block in blocks]

    def test_the_formula_knows_black_white_and_a_grey_that_is_too_pale(self) -> None:
        assert self.contrast("#000000", "#ffffff") == pytest.approx(21)
        assert self.contrast("#777777", "#ffffff") < 4.5 < self.contrast("#767676", "#ffffff")

    def test_all_text_and_all_lines_stand_out_in_both_themes(self) -> None:
        light, dark = self.themes()
        assert light.keys() == dark.keys()
        for theme in (light, dark):
            drawn = {name: colour for name, colour in theme.items() if name not in ("--bg", "--panel", "--line")}
            assert len(drawn) >= 14
            for ground in ("--bg", "--panel"):
                pale = {n: round(c, 2) for n, v in drawn.items() if (c := self.contrast(v, theme[ground])) < 4.5}
                assert not pale, ground


class TestHostileText:
    """Whatever stands in a record, the page has the same elements."""

    @pytest.mark.parametrize("text", HOSTILE)
    def test_no_text_changes_the_structure(self, text: str) -> None:
        harmless = "x" * len(text)
        pages = [Page(render(records.hostile(tail), accepted(records.hostile(tail)))) for tail in (text, harmless)]
        assert pages[0].structure == pages[1].structure

    def test_a_template_that_did_not_escape_would_be_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(environment.environment(), "autoescape", False)
        environment.environment().cache.clear()  # type: ignore[union-attr]
        try:
            page = render(records.hostile(HOSTILE[0]))
        finally:
            environment.environment().cache.clear()  # type: ignore[union-attr]
        assert "<script" in page

    def test_it_is_shown_as_text(self) -> None:
        assert "Test CPU&lt;script&gt;alert(1)&lt;/script&gt;" in render(records.hostile(HOSTILE[0]))

    @pytest.mark.parametrize("text", HOSTILE)
    def test_every_way_of_showing_it_can_be_written_to_a_file(self, text: str) -> None:
        record = records.hostile(text)
        for shown in (render(record), markdown.render(record)):
            shown.encode("utf-8")
            assert "\0" not in shown
        shown = terminal.render(record, 160, color=False)
        assert all(character.isprintable() or character == "\n" for character in shown), "nothing steers a terminal"


def replaced(value: Any, by: Callable[[Any], Any], field: str = "") -> Any:
    """A record's content with every number exchanged, workloads and the schema's own version aside."""
    if field in ("workloads", "schema_version") or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return {key: replaced(item, by, key) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, by, field) for item in value]
    return by(value) if isinstance(value, int | float) else value


class TestExtremes:
    """Any valid record can be shown."""

    @pytest.mark.parametrize("number", [1e308, -1e308, 5e-324, 0.0, -1.0, 0.1 + 0.2])
    def test_any_finite_figure(self, number: float) -> None:
        content = replaced(
            records.full().model_dump(mode="json"), lambda value: number if isinstance(value, float) else value
        )
        record = Record.model_validate(content)
        page = Page(render(record))
        assert "FAIL" in page.section("verdicts")
        assert len(markdown.render(record)) < 100_000, "no figure is written with three hundred digits"
        terminal.render(record, 160, color=False)

    @pytest.mark.parametrize("number", [0, -1, 10**18, 10**400])
    def test_any_count(self, number: int) -> None:
        content = replaced(
            records.full().model_dump(mode="json"), lambda value: number if isinstance(value, int) else value
        )
        record = Record.model_validate(content)
        Page(render(record))
        markdown.render(record)
        terminal.render(record, 160, color=False)

    def test_a_record_of_nothing(self) -> None:
        empty = records.make(cells=[], sessions=[], accuracies=[], settings=[], workloads={}, datasets={})
        page = Page(render(empty))
        assert page.one("h1").text == "Scaling: no cells"
        assert "communication" not in {e.attributes.get("id") for e in page.all("section")}

    def test_parts_that_do_not_fit_together(self) -> None:
        lost = records.full(workloads={}, workload_hashes={}, datasets={}, epoch_samples={}, arms=[])
        Page(render(lost, accepted(records.full(cells=records.matrix()))))
        assert markdown.render(lost)

    def test_interval_bounds_may_be_missing_everywhere(self) -> None:
        def without(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: without(v) for k, v in value.items() if k not in ("low", "high")}
            return [without(item) for item in value] if isinstance(value, list) else value

        Page(render(Record.model_validate(without(records.full().model_dump(mode="json")))))

    @pytest.mark.parametrize("path", REAL, ids=lambda path: path.parent.name)
    def test_a_real_record(self, path: Path) -> None:
        record = read_model(path, Record)
        page = Page(render(record))
        assert page.one("h1").text == f"Scaling: {title(record)}"
        for row in figures.rows(record, record.cells):
            assert all(text in page.section("verdicts") for text in row)

    def test_there_is_a_real_record(self) -> None:
        assert REAL

    def test_older_schemas_are_shown_as_well(self) -> None:
        content = json.loads(records.full(schema_version=1).model_dump_json())
        for session in content["sessions"]:
            session |= {"conditions": [], "left_out": [], "probes": [], "load_before": 1.0}
        page = Page(render(Record.model_validate(content)))
        assert "What else used the machine was not recorded." in page.section("machine")
        assert "record schema 1" in page.one("footer").text


class TestSize:
    """A page stays one that a browser opens."""

    def test_ten_thousand_cells_and_the_one_that_failed_is_in_view(self) -> None:
        cells = [records.cell(id=f"c{number}", trainer=f"t{number}", outcome="PASS") for number in range(10_000)]
        cells[7777] |= {"outcome": "FAIL"}
        record = records.make(cells=cells)
        html = render(record)
        page = Page(html)
        assert len(html) < 3_000_000
        assert page.one("h1").text == "Scaling: 1 FAIL, 9999 PASS"
        assert "t7777 lenet" in next(e.text for e in page.all("th") if "tbody" in e.ancestors)
        assert f"{10_000 - SHOWN - FOLDED} more are not shown" in page.section("verdicts")
        summary = markdown.render(record)
        assert len(summary.encode()) < markdown.MAX_BYTES
        assert "t7777 lenet" in summary
        assert re.search(r"\*\d{4} more left out here; record.json has them", summary)

    def test_many_waterfalls_and_curves_are_cut_with_a_sentence(self) -> None:
        trainers = [f"t{number}" for number in range(40)]
        cells = records.matrix(trainers=trainers, waterfalls=[records.waterfall()])
        accuracies = [records.accuracy(trainer=trainer) for trainer in trainers]
        page = Page(render(records.make(cells=cells, accuracies=accuracies)))
        assert "34 more trainers are in the table of figures" in page.section("scaling")
        assert "28 more are in the table" in page.section("learning")
        assert "Other cells" in page.section("lost_time")

    def test_a_text_of_megabytes_is_cut_where_it_is_shown(self) -> None:
        flood = "x" * 5_000_000
        check = records.check(reason=flood, against=flood)
        cells = [records.cell(id=flood, reason=flood, outcome="ERROR", details=flood, checks=[check])]
        record = records.make(cells=cells, neighbours=[flood], settings=[flood])
        html = render(record)
        assert len(html) < 200_000
        assert "(cut here; record.json has it whole)" in html
        assert len(markdown.render(record).encode()) < markdown.MAX_BYTES

    def test_a_summary_stays_below_its_limit_whatever_the_texts(self) -> None:
        flood = "<" * 3_000
        checks = [records.check(reason=flood)]
        cells = [
            records.cell(id=f"{number}{flood}", reason=f"{number}{flood}", details=flood, checks=checks)
            for number in range(500)
        ]
        accuracies = [records.accuracy(trainer=flood)] * 500
        text = markdown.render(records.make(cells=cells, accuracies=accuracies, neighbours=[flood] * 500))
        assert len(text.encode()) < markdown.MAX_BYTES
        assert text.count("```") % 2 == 0
        assert text.count("<details>") == text.count("</details>")

    def test_rows_are_counted_whether_many_or_long(self) -> None:
        many = bounded([("x",)] * 5, 5, shown=2, folded=2)
        assert (len(many.shown), len(many.folded), many.dropped) == (2, 2, 1)
        long = bounded([("x" * 3_000,)] * 1_000, 1_000)
        assert long.dropped == 1_000 - CHARACTERS // 3_000

        assert bounded((("x",) for _ in range(5)), shown=2, folded=2) == many
        assert bounded(iter([("x" * 3_000,)] * 1_000)).dropped == long.dropped

    def test_no_more_rows_are_made_than_are_shown(self) -> None:
        made = []
        bounded((made.append(n) or ("x",) for n in range(100)), 100, shown=2, folded=2)  # type: ignore[func-returns-value]
        assert made == [0, 1, 2, 3]

    def test_long_text_is_cut_and_markup_of_ours_is_not(self) -> None:
        shown = environment.environment().from_string("{{ text }}").render(text="x" * 10_000)
        assert len(shown) < 5_000
        assert len(environment.environment().from_string("{{ text }}").render(text=Markup("x" * 10_000))) == 10_000


class TestContent:
    """Each section says what the record says."""

    def test_what_needs_a_look_comes_first(self) -> None:
        html = render(records.full())
        rows = [e.text for e in Page(html).all("span") if e.attributes.get("class", "").startswith("badge")]
        counted = rows[:5]
        assert [row.split()[1] for row in counted] == ["FAIL", "ERROR", "INCONCLUSIVE", "NO", "PASS"]
        assert [row.split()[1] for row in rows[5:8]] == ["FAIL", "ERROR", "INCONCLUSIVE"]

    def test_stacks_of_failed_ranks_are_there(self) -> None:
        assert "rank 1: exit code 3 Traceback: out of memory" in Page(render(records.full())).section("verdicts")

    def test_an_interrupted_run_says_so_first(self) -> None:
        page = Page(render(records.full(interrupted=True)))
        assert "Cut short" in page.one("header").text
        assert "never a baseline" in page.section("accepting")

    def test_every_rule_is_there_and_one_that_does_not_count_is_marked(self) -> None:
        text = Page(render(records.full())).section("comparisons")
        assert "time main ✗ FAIL 1.200 [1.176, 1.224]" in text
        assert "accuracy 1 device ✓ PASS shown only" in text
        assert "torch 2.13.0 against 2.15.0" in text

    def test_curves_stand_beside_the_ideal_and_the_base(self) -> None:
        cells = records.matrix(slowdown=records.interval(1.25), modes=("strong",))
        cells[0]["slowdown"] = records.interval(1.0)
        record = records.full(cells=cells)
        text = Page(render(record)).section("scaling")
        # Efficiency .9 with t_2 a quarter longer than the base's and t_1 the same: the base had .9 * 1.25.
        assert re.search(r"ddp 2 0\.90 \[0\.85, 0\.95\] .*ddp, base 1 1\.00 +ddp, base 2 1\.1[23]", text)
        assert "ideal" in text
        assert text.index("Speed-up, lenet") < text.index("Efficiency, lenet")

    def test_without_a_base_in_the_run_the_newest_accepted_run_stands_beside_it(self) -> None:
        record = records.make(cells=records.matrix())
        slower = record.model_copy(update={"cells": records.make(cells=records.matrix(loss=0.4)).cells})
        text = Page(render(record, accepted(slower))).section("scaling")
        assert "Hollow markers: the newest accepted run, week-0." in text
        assert re.search(r"ddp, base 1 1\.00 +ddp, base 2 0\.60", text)
        assert "ddp, base" not in Page(render(record)).section("scaling")

    def test_strong_and_weak_stand_side_by_side(self) -> None:
        titles = [e.text for e in Page(render(records.make(cells=records.matrix()))).all("figcaption")]
        assert titles[:4] == [
            f"{what}, lenet, {mode} scaling" for what in ("Speed-up", "Efficiency") for mode in ("strong", "weak")
        ]

    def test_where_to_stop_is_a_sentence_with_its_costs(self) -> None:
        text = Page(render(records.full())).section("costs")
        assert "Stop at k = 2" in text
        assert "ddp lenet strong 2 0.90 [0.85, 0.95] 7.22 14.4 1.11" in text

    def test_a_waterfall_adds_up_from_ideal_to_measured(self) -> None:
        text = Page(render(records.full())).section("lost_time")
        assert "the exchange costs 11.2 ms a step" in text
        names = ("ideal", "small batch", "not separable", "overhead", "exchange", "feed", "measured")
        pattern = ".*?".join(rf"{name} (-?\d+\.\d+) " for name in names)
        parts = re.search(pattern, text[text.index("ddp-lenet-strong-4") :])
        assert parts is not None
        *added, measured = map(float, parts.groups())
        assert sum(added) == pytest.approx(measured, abs=0.02)

    def test_causes_that_could_not_be_told_apart_are_named_so(self) -> None:
        text = Page(render(records.full())).section("lost_time")
        assert "contention + imbalance, not separable" in text
        assert "one process has no slowest rank" in text

    def test_candidate_and_base_stand_side_by_side_with_what_grew(self) -> None:
        text = Page(render(records.full())).section("lost_time")
        assert re.search(r"exchange 11\.20 \[8\.96, 13\.44\] 5\.60 \[4\.48, 6\.72\] \+5\.60", text)
        assert re.search(r"small batch \S+ \[\S+ \S+ \S+ \[\S+ \S+ \+0\.00", text)

    def test_a_cell_that_was_not_taken_apart_says_why(self) -> None:
        cells = [records.cell(waterfall_note="oversubscribed devices say nothing about scaling")]
        text = Page(render(records.make(cells=cells))).section("lost_time")
        assert "ddp-lenet-strong-1 oversubscribed devices say nothing about scaling" in text

    def test_learning_curves_are_means_over_seeds_with_their_range(self) -> None:
        runs = [records.accuracy(seed=seed, per_epoch=[0.5, reached]) for seed, reached in ((1, 0.9), (2, 0.8))]
        text = Page(render(records.make(accuracies=runs))).section("learning")
        assert "k = 2 2 0.850 [0.800, 0.900]" in text
        assert "lowest and highest seed" in text

    def test_each_mode_has_a_curve_of_its_own(self) -> None:
        runs = [records.accuracy(per_epoch=[0.5, 0.9]), records.accuracy(mode="weak", per_epoch=[0.5, 0.8])]
        text = Page(render(records.make(accuracies=runs))).section("learning")
        assert "k = 2 2 0.900" in text
        assert "k = 2, weak 2 0.800" in text

    def test_published_figures_stand_beside_ours(self) -> None:
        text = Page(render(records.make(cells=records.matrix()))).section("book")
        assert "lenet 2 lecture notebook, scratch 2.6 1.00 - ddp 7.22 [6.86, 7.58] 1.80 [1.71, 1.89]" in text
        assert "lenet weak 2 lecture notebook, scratch 2.4 1.08 - ddp 7.22" in text

    def test_sweeps_have_their_fit_beside_what_was_measured(self) -> None:
        text = Page(render(records.full())).section("communication")
        assert "gloo 2 100.0 [90.0, 110.0] 1 [0.9, 1.1] 1 [0.909, 1.11]" in text
        assert "all_reduce, tree, k = 2 rank 1 hung" in text
        assert "gloo 2 4 KiB 104.1 [102.0, 106.2] 104.1" in text

    def test_a_projection_stands_with_its_assumptions_and_is_called_one(self) -> None:
        record = records.full()
        text = Page(render(record)).section("projection")
        assert "ddp lenet strong 16 projected" in text
        assert "A projection from 2 devices, not a measurement." in text
        assert "scratch lenet weak scratch-lenet-weak-4 was not timed" in text
        without = Page(render(record.model_copy(update={"collectives": ()})))
        assert "projection" not in {element.attributes.get("id") for element in without.all("section")}

    def test_what_held_a_gpu_back_is_in_its_session(self) -> None:
        gpu = {"index": 0, "mhz": 1200, "celsius": 88, "throttled": ["hw_thermal_slowdown"], "ecc_errors": 2}
        session = records.session()
        session["conditions"] = [{**found, "gpus": [gpu]} for found in session["conditions"]]
        text = Page(render(records.make(sessions=[session]))).section("machine")
        assert "1200 MHz, 88 °C, hw_thermal_slowdown, 4 ECC errors" in text
        assert "GPU 0 was throttled (hw_thermal_slowdown)" in text

    def test_what_changed_since_the_newest_accepted_run_is_said(self) -> None:
        record = records.make(
            environment={"versions": {"torch": "2.15.0", "cuda": "13"}, "commit": "b" * 40, "dirty": True}
        )
        text = Page(render(record, accepted(record))).section("machine")
        assert "Since the newest accepted run, week-0:" in text
        for change in ("host fedcba abcdef", "torch 2.13.0 2.15.0", "python 3.12.1 -", "cuda - 13"):
            assert change in text
        assert "The same: commit." in text
        assert "nothing yet that this run could differ from" in Page(render(record)).section("machine")

    def test_a_run_is_not_compared_with_itself(self) -> None:
        record = records.make()
        own = baselines.accept(Baseline(machine_key=record.machine.key), record, slower=False)
        page = Page(render(record, own))
        assert "nothing yet that this run could differ from" in page.section("machine")
        assert "This run is one of the 1 in the accepted baseline." in page.section("accepting")

    @pytest.mark.parametrize(
        ("outcome", "expected"),
        [
            ("PASS", "pytest -m scaling --scaling-accept What"),
            ("FAIL", "pytest -m scaling --scaling-accept=slower"),
            ("ERROR", "such a run is never a baseline: mend it and run again"),
        ],
    )
    def test_how_to_accept_depends_on_what_was_found(self, outcome: str, expected: str) -> None:
        record = records.make(cells=[records.cell(outcome=outcome)], repeat=["-m", "scaling"])
        text = Page(render(record)).section("accepting")
        assert expected in text
        assert "cpu-2xtest-00000000/baseline.json" in text
        assert ("=slower" in text) == (outcome == "FAIL")

    def test_disturbances_neighbours_plan_and_settings_are_there(self) -> None:
        text = Page(render(records.full())).section("machine")
        assert "2 of 4 blocks were disturbed and 2 left out" in text
        assert "other processes used 90% of a core" in text
        assert "editor (pid 7) uses 0.3 of a core" in text
        assert "12 cells, 2 sessions, about 2 minutes" in text
        assert "scaling: devices cpu:2" in text

    def test_samples_are_milliseconds_a_step_and_disturbed_ones_are_marked(self) -> None:
        text = Page(render(records.full())).section("samples")
        assert "candidate:ddp:lenet:strong:2 34.00 34.00 34.00· 34.00·" in text
