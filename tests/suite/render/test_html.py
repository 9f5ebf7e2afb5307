"""The report says what the record says, to everybody, and nothing in a record becomes markup."""

from __future__ import annotations

import json
import re
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from suite.records import baselines
from suite.records.baselines import Baseline
from suite.records.record import LARGEST, Record
from suite.render import figures, html, markdown, terminal
from suite.render.document import CHARACTERS, FOLDED, SHOWN, Table
from suite.render.html import render
from suite.render.lead import title
from suite.render.report import sentence
from suite.render.sections.scaling import AXES
from suite.run import results
from tests.golden import RUNS, load, replay
from tests.support import records
from tests.support.pages import Page

REAL = sorted(RUNS.glob("*.json"))
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
    """Return a baseline with a run that measured the same a week before, with an older torch on another host."""
    environment = record.environment.model_copy(update={"versions": {"torch": "2.13.0", "python": "3.12.1"}})
    machine = record.machine.model_copy(update={"host": "fedcba"})
    passed = [cell.model_copy(update={"outcome": "PASS"}) for cell in record.cells]
    changes = {"run_id": "week-0", "environment": environment, "machine": machine, "cells": tuple(passed)}
    changes["collectives"] = tuple(sweep for sweep in record.collectives if not sweep.error)
    empty = Baseline(machine_key=record.machine.key)
    return baselines.accept(empty, record.model_copy(update=changes), slower=False)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(records.full()))


def section(name: str, baseline: Baseline | None = None, **changes: Any) -> str:
    """Return the text of a section of a small record with these changes."""
    return Page(render(records.make(**changes), baseline)).section(name)


class TestForEverybody:
    """Structure that screen readers, keyboards and phones rely on."""

    def test_it_is_well_formed_and_every_part_is_in_a_landmark_that_can_be_reached(self, page: Page) -> None:
        with pytest.raises(ValueError, match="closes"):
            Page("<p><b></p></b>")
        assert page.one("html").attributes["lang"] == "en"
        assert all(page.one(tag) for tag in ("header", "nav", "main", "footer"))
        assert page.all("a")[0].attributes["href"] == "#" + page.one("main").attributes["id"]
        ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
        assert len(ids) == len(set(ids))
        assert {element.attributes["aria-labelledby"] for element in page.all("section")} <= set(ids)
        inside = [a.attributes["href"][1:] for a in page.all("a") if a.attributes["href"].startswith("#")]
        assert set(inside) <= set(ids)
        levels = [int(element.tag[1]) for element in page.all("h1", "h2", "h3", "h4", "h5", "h6")]
        assert (levels[0], levels.count(1)) == (1, 1)
        assert all(after <= before + 1 for before, after in pairwise(levels)), "headings do not skip a level"

    def test_every_table_is_named_and_scrolls_in_a_box_that_the_keyboard_reaches(self, page: Page) -> None:
        assert {element.attributes.get("scope") for element in page.all("th")} == {"row", "col"}
        boxes = [e for e in page.elements if "scroll" in e.attributes.get("class", "").split()]
        drawn = [e for e in page.all("figure") if e.attributes.get("class") == "intervals"]
        assert len(boxes) == len(page.all("table")) - len(drawn) == len(page.all("caption"))
        assert all(e.attributes["tabindex"] == "0" and e.attributes["aria-label"] for e in boxes)

    def test_pictures_have_a_name_or_are_hidden_because_a_table_has_their_numbers(self, page: Page) -> None:
        for svg in page.all("svg"):
            assert svg.attributes.get("role") == "img" or svg.attributes.get("aria-hidden") == "true"

    def test_a_verdict_has_a_word_and_a_symbol(self, page: Page) -> None:
        badges = [e.text.strip() for e in page.all("span") if e.attributes.get("class", "").startswith("badge")]
        assert badges[0] == "✗ FAIL", "the sentence begins with the gravest"
        assert badges[1:6] == ["✗ FAIL", "! ERROR", "? INCONCLUSIVE", "○ NO BASELINE", "✓ PASS"]

    def test_it_loads_nothing_and_runs_nothing(self, page: Page) -> None:
        assert not page.all("script", "img", "iframe", "object", "embed", "form", "base")
        assert "src" not in {name for element in page.elements for name in element.attributes}
        addresses = [e.attributes["href"] for e in page.elements if "href" in e.attributes]
        outside = {address for address in addresses if not address.startswith("#")}
        assert outside == {"data:,", "../../index.html", "record.json", "summary.md"}
        assert not re.search(r"url\(|@import", page.one("style").text)
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

    def test_all_text_and_all_lines_stand_out_in_both_themes(self) -> None:
        assert self.contrast("#000000", "#ffffff") == pytest.approx(21)
        assert self.contrast("#777777", "#ffffff") < 4.5 < self.contrast("#767676", "#ffffff")
        style = (Path(html.__file__).parent / "style.css").read_text()
        blocks = re.findall(r":root \{([^}]*)\}", style)
        light, dark = (dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", block)) for block in blocks)
        assert light.keys() == dark.keys()
        for theme in (light, dark):
            drawn = {name: colour for name, colour in theme.items() if name not in ("--bg", "--panel", "--line")}
            assert len(drawn) >= 14
            for ground in ("--bg", "--panel"):
                pale = {n: round(c, 2) for n, v in drawn.items() if (c := self.contrast(v, theme[ground])) < 4.5}
                assert not pale, ground


class TestHostileText:
    """Whatever text a record holds, the page has the same elements."""

    @pytest.mark.parametrize("hostile", HOSTILE)
    def test_no_text_changes_the_structure_and_every_output_can_be_written(self, hostile: str) -> None:
        record, harmless = records.hostile(hostile), records.hostile("x" * len(hostile))
        text = render(record, accepted(record))
        assert Page(text).structure == Page(render(harmless, accepted(harmless))).structure
        for shown in (text, markdown.render(record), terminal.render(record, 160, color=False)):
            assert all(character.isprintable() or character == "\n" for character in shown), "nothing steers a terminal"

    def test_a_template_that_did_not_escape_would_be_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "Test CPU&lt;script&gt;alert(1)&lt;/script&gt;" in render(records.hostile(HOSTILE[0]))
        monkeypatch.setattr(html.environment(), "autoescape", False)
        html.environment().cache.clear()  # type: ignore[union-attr]
        try:
            text = render(records.hostile(HOSTILE[0]))
        finally:
            html.environment().cache.clear()  # type: ignore[union-attr]
        assert "<script" in text


class TestExtremes:
    """Any valid record can be shown."""

    @pytest.mark.parametrize("number", [LARGEST, -LARGEST, 5e-324, 0.0, -1.0, 0.1 + 0.2, 0, -1, 10**18])
    def test_any_number(self, number: float) -> None:
        text = records.full().model_dump_json()
        form = r"-?\d+(\.\d+(e-?\d+)?|e-?\d+)" if isinstance(number, float) else r"-?\d+"
        content = json.loads(re.sub(rf"(?<=[:,\[]){form}(?=[,}}\]])", repr(number), text))
        unchanged = {key: json.loads(text)[key] for key in ("workloads", "schema_version", "checks_to_come")}
        content["machine"] |= {"hosts": 1, "per_host": 1}  # numbers of machines have bounds
        record = Record.model_validate(content | unchanged)
        assert "FAIL" in Page(render(record)).section("cells")
        assert len(markdown.render(record)) < 100_000, "no figure is written with a hundred digits"
        terminal.render(record, 160, color=False)

    def test_a_record_of_nothing_and_parts_that_do_not_fit_together(self) -> None:
        empty = records.make(cells=[], sessions=[], accuracies=[], settings=[], workloads={}, datasets={})
        page = Page(render(empty))
        assert page.one("h1").text == "no cells"
        assert "exchange" not in {e.attributes.get("id") for e in page.all("section")}
        lost = records.full(workloads={}, workload_hashes={}, datasets={}, epoch_samples={}, arms=[])
        Page(render(lost, accepted(records.full(cells=records.matrix()))))
        assert markdown.render(lost)

    def test_interval_bounds_may_be_missing_everywhere(self) -> None:
        text = re.sub(r',"(low|high)":[-+.e\d]+', "", records.full().model_dump_json())
        Page(render(Record.model_validate_json(text)))

    def test_real_records(self) -> None:
        assert REAL
        for path in REAL:
            record = results.to_record(replay(load(path)))
            page = Page(render(record))
            assert page.all("title")[0].text == f"Scaling: {title(record)}"
            assert sentence(record) in page.one("h1").text
            text = page.section("cells")
            fields = {field for row in figures.rows(record, record.cells) for field in row} - {"-"}
            assert [field for field in fields if field not in text] == [], path


class TestSize:
    """A page stays one that a browser opens."""

    @pytest.mark.nightly
    def test_ten_thousand_cells_and_the_one_that_failed_is_in_view(self) -> None:
        cells = [records.cell(id=f"c{number}", trainer=f"t{number}", outcome="PASS") for number in range(10_000)]
        cells[7777] |= {"outcome": "FAIL"}
        record = records.make(cells=cells)
        text, summary = render(record), markdown.render(record)
        page = Page(text)
        assert len(text) < 3_000_000
        assert page.all("title")[0].text == "Scaling: 1 FAIL, 9999 PASS"
        rows = [element.text for element in page.all("th") if "tbody" in element.ancestors]
        assert "c7777" in rows[0], "in the picture"
        assert "t7777 lenet" in next(name for name in rows if " lenet" in name), "and in the table"
        assert f"{10_000 - SHOWN - FOLDED} more are not shown" in page.section("cells")
        assert len(summary.encode()) <= markdown.MAX_BYTES
        assert "t7777 lenet" in summary
        assert re.search(r"\*\d{4} more left out here; record.json has them", summary)

    def test_many_waterfalls_and_curves_are_cut_with_a_sentence(self) -> None:
        trainers = [f"t{number}" for number in range(40)]
        cells = records.matrix(trainers=trainers, waterfalls=[records.waterfall()])
        accuracies = [records.accuracy(trainer=trainer) for trainer in trainers]
        page = Page(render(records.make(cells=cells, accuracies=accuracies)))
        assert "34 more trainers are in the table of cells" in page.section("scaling")
        assert "28 more are in the table" in page.section("learning")
        assert "Other cells" in page.section("lost_time")

    def test_long_texts_are_cut_in_every_output(self) -> None:
        flood = "<" * 5_000
        fields = {"reason": flood, "details": flood, "outcome": "ERROR", "checks": [records.check(reason=flood)]}
        cells = [records.cell(id=f"{number}{flood}", **fields) for number in range(200)]
        changes = {"accuracies": [records.accuracy(trainer=flood)] * 200, "neighbours": [flood] * 200}
        record = records.make(cells=cells, settings=[flood], **changes)
        text, summary = render(record), markdown.render(record)
        assert len(text) < 10_000_000
        assert "(cut here; record.json has it whole)" in text
        assert len(summary.encode()) <= markdown.MAX_BYTES
        assert summary.count("```") % 2 == 0
        assert summary.count("<details>") == summary.count("</details>")
        assert len(html.environment().from_string("{{ text }}").render(text=Markup("x" * 10_000))) == 10_000

    def test_only_the_rows_that_fit_are_made_and_the_others_are_counted(self) -> None:
        made = (("x", str(number)) for number in range(100))
        many = Table.of("many", ("what", "number"), made, total=FOLDED + 100)
        assert (len(many.rows), many.dropped) == (100, FOLDED)
        endless = (("x", str(number)) for number in count())
        assert len(Table.of("endless", ("what", "number"), endless, total=10**6).rows) == SHOWN + FOLDED
        assert next(endless) == ("x", str(SHOWN + FOLDED))
        assert Table.of("long", ("what",), [("x" * 3_000,)] * 1_000).dropped == 1_000 - CHARACTERS // 3_000


class TestContent:
    """Each section says what the record says."""

    @pytest.mark.parametrize(
        ("name", "texts"),
        [
            ("cells", ["rank 1: exit code 3 Traceback: out of memory"]),
            ("rules", ["time main ✗ FAIL 1.200 [1.176, 1.224]", "accuracy 1 device ✓ PASS shown only"]),
            ("rules", ["torch 2.13.0 against 2.15.0"]),
            ("counters", [
                "ddp-lenet-strong-2 candidate all_reduce: 2, float32, 1.0 MB 200 to 201",
                "rank 1 died",
            ]),
            ("memory", ["base:ddp:lenet:strong:2 1.0 GB in tensors, 2.0 GB reserved"]),
            ("scaling", ["ideal", "ddp 2 0.90 [0.85, 0.95]", "k = 2 still pays: ddp, scratch"]),
            ("scaling", ["Stop at k = 2", "ddp lenet strong 2 0.90 [0.85, 0.95] 7.22 14.4 1.11"]),
            ("lost_time", ["contention + imbalance, not separable", "one process has no slowest rank"]),
            ("lost_time", ["the exchange costs 11.2 ms", "exchange 11.20 [8.96, 13.44] 5.60 [4.48, 6.72] +5.60"]),
            ("exchange", ["gloo 2 100.0 [90.0, 110.0] 1 [0.9, 1.1] 1 [0.909, 1.11]"]),
            ("exchange", ["all_reduce, tree, k = 2 rank 1 hung", "gloo 2 4 KiB 104.1 [102.0, 106.2] 104.1"]),
            ("exchange", ["ddp lenet strong, projected 16", "A projection, not a measurement: it assumes"]),
            ("exchange", ["scratch lenet weak: no waterfall: its step was not taken apart"]),
            ("machine", ["2 of 4 blocks were disturbed, and 2 were left out", "other processes used 90% of a core"]),
            ("machine", ["editor (pid 7) uses 0.3 of a core", "12 cells, 2 sessions, about 2 minutes"]),
            ("machine", ["scaling: devices cpu:2", "What changed since the base, main", "torch 2.13.0 2.15.0"]),
            ("samples", ["candidate:ddp:lenet:strong:2 34.00 34.00 34.00· 34.00·"]),
        ],
    )  # fmt: skip
    def test_a_full_record(self, page: Page, name: str, texts: list[str]) -> None:
        assert [text for text in texts if text not in page.section(name)] == []

    def test_one_disturbed_block_is_not_several(self) -> None:
        record = records.full()
        one = record.model_copy(update={"sessions": record.sessions[:1]})
        assert figures.disturbances(one).startswith("1 of 2 blocks was disturbed, and 1 was left out; ")

    def test_curves_of_a_base_are_computed_from_the_ratio_of_times(self) -> None:
        cells = records.matrix(slowdown=records.interval(1.25), modes=("strong",))
        cells[0]["slowdown"] = records.interval(1.0)
        text = Page(render(records.full(cells=cells))).section("scaling")
        # Efficiency .9 with t_2 a quarter longer than the base's and t_1 the same: the base had .9 * 1.25.
        assert re.search(r"ddp 2 0\.90 \[0\.85, 0\.95\] .*ddp, base 1 1\.00 +ddp, base 2 1\.1[23]", text)

    def test_without_a_base_in_the_run_the_curves_are_compared_with_the_newest_accepted_run(self) -> None:
        slower = accepted(records.make(cells=records.matrix(loss=0.4)))
        text = section("scaling", slower, cells=records.matrix())
        assert "Hollow markers: the newest accepted run, week-0." in text
        assert re.search(r"ddp, base 1 1\.00 +ddp, base 2 0\.60", text)
        assert "ddp, base" not in section("scaling", cells=records.matrix())

    def test_strong_and_weak_are_side_by_side(self, page: Page) -> None:
        titles = [f"{what}, lenet, {mode} scaling" for what in AXES for mode in ("strong", "weak")]
        found = [element.text for element in page.all("figcaption") if "scaling" in element.text]
        assert found[:4] == titles

    def test_a_waterfall_adds_up_from_ideal_to_measured(self, page: Page) -> None:
        text = page.section("lost_time")
        names = ("ideal", "small batch", "not separable", "overhead", "exchange", "feed", "measured")
        pattern = ".*?".join(rf"{name} (-?\d+\.\d+) " for name in names)
        parts = re.search(pattern, text[text.index("ddp-lenet-strong-4") :])
        assert parts is not None
        *added, measured = map(float, parts.groups())
        assert sum(added) == pytest.approx(measured, abs=0.02)

    def test_a_part_whose_interval_means_nothing_is_not_known(self) -> None:
        """Feed 6.4 [-114, 127] ms of a step of 35 ms is no figure, and neither is its difference from the base's."""
        own, base = records.waterfall(), records.waterfall("base")
        own["bars"][-1]["step_s"] = {"estimate": 0.0064, "low": -0.114, "high": 0.127}
        text = section("lost_time", cells=[records.cell(waterfalls=[own, base])])
        assert "feed not known 0.30 [0.24, 0.36] measured" in text
        assert "6.40" not in text

    def test_a_part_is_called_longer_only_where_intervals_are_apart(self) -> None:
        own, base = records.waterfall(exchange=0.0062), records.waterfall("base")
        text = section("lost_time", cells=[records.cell(waterfalls=[own, base])])
        assert "exchange 6.20 [4.96, 7.44] 5.60 [4.48, 6.72] feed" in text

    def test_a_cell_without_a_waterfall_says_why(self) -> None:
        missing = [records.missing("waterfall", "oversubscribed devices say nothing")]
        text = section("lost_time", cells=[records.cell(missing=missing)])
        assert "ddp-lenet-strong-1: oversubscribed devices say nothing" in text

    def test_learning_curves_are_means_over_seeds_with_their_range_by_mode(self) -> None:
        runs = [records.accuracy(seed=seed, per_epoch=[0.5, reached]) for seed, reached in ((1, 0.9), (2, 0.8))]
        weak = records.accuracy(mode="weak", per_epoch=[0.5, 0.7])
        text = section("learning", accuracies=[*runs, weak])
        for part in ("k = 2 2 0.850 [0.800, 0.900]", "lowest and highest seed", "k = 2, weak 2 0.700"):
            assert part in text

    def test_published_figures_are_in_the_same_rows_as_ours(self) -> None:
        text = section("learning", cells=records.matrix())
        assert "lenet 2 lecture notebook, scratch 2.6 1.00 ddp 7.22 [6.86, 7.58] 1.80 [1.71, 1.89]" in text
        assert "lenet weak 2 lecture notebook, scratch 2.4 1.08 ddp 7.22" in text

    def test_throttling_of_a_gpu_is_in_its_session(self) -> None:
        gpu = {"index": 0, "mhz": 1200, "celsius": 88, "throttled": ["hw_thermal_slowdown"], "ecc_errors": 2}
        session = records.session()
        session["conditions"] = [{**found, "gpus": [gpu]} for found in session["conditions"]]
        text = section("machine", sessions=[session])
        assert "1200 MHz, 88 °C, hw_thermal_slowdown, 4 ECC errors" in text
        assert "GPU 0 was throttled (hw_thermal_slowdown)" in text

    def test_changes_are_counted_from_the_newest_accepted_run_that_is_another_one(self) -> None:
        environment = {"versions": {"torch": "2.15.0", "cuda": "13"}, "commit": "b" * 40, "dirty": True}
        record = records.make(environment=environment)
        text = section("machine", accepted(record), environment=environment)
        changes = (
            "host fedcba abcdef",
            "torch 2.13.0 2.15.0",
            "python 3.12.1 -",
            "cuda - 13",
            "The same: commit, system.",
        )
        assert [
            change for change in ("What changed since the newest accepted run, week-0", *changes) if change not in text
        ] == []
        assert "driver" not in text, "neither run has one"
        own = baselines.accept(Baseline(machine_key=record.machine.key), record, slower=False)
        page = Page(render(record, own))
        assert "This run is one of the 1 in the accepted baseline." in page.section("machine")
        assert "Later runs rebuild its commit" not in page.section("machine"), "its changes are not committed"

    def test_a_driver_or_kernel_that_changed_is_shown_beside_a_base_that_ran_on_the_new_ones(self) -> None:
        """The base is a rebuilt commit, so its versions are today's."""
        record = records.make(machine={**records.MACHINE, "driver": "570.1", "system": "Linux 7"})
        then = record.machine.model_copy(update={"driver": "560.2", "system": "Linux 6"})
        week_ago = accepted(record.model_copy(update={"machine": then}))
        base = {"side": "base", "kind": "ref", "label": "abc1234", "commit": record.environment.commit}
        text = section("machine", week_ago, machine=record.machine.model_dump(), bases=[base])
        assert "Nothing changed since the base, abc1234, as far as is known: torch, commit." in text
        changes = ("torch 2.13.0 2.15.0", "driver 560.2 570.1", "system Linux 6 Linux 7")
        assert [each for each in changes if each not in text[text.index("since the newest accepted run") :]] == []

    @pytest.mark.parametrize(
        ("outcome", "interrupted", "expected"),
        [
            ("PASS", False, "pytest -m scaling --scaling-accept What is accepted"),
            ("FAIL", False, "pytest -m scaling --scaling-accept=slower"),
            ("ERROR", False, "cannot be accepted: a run with an ERROR is never a baseline; repair it and run again."),
            ("PASS", True, "cannot be accepted: a run that was cut short is never a baseline; run it to its end."),
        ],
    )
    def test_how_to_accept_depends_on_the_outcome(self, outcome: str, interrupted: bool, expected: str) -> None:
        cells, repeat = [records.cell(outcome=outcome)], ["-m", "scaling"]
        page = Page(render(records.make(cells=cells, repeat=repeat, interrupted=interrupted)))
        text = page.section("machine")
        assert expected in text
        assert "cpu-2xtest-00000000/baseline.json" in text
        assert "Later runs rebuild its commit and measure it in the same sessions." in text
        assert ("=slower" in text) == (outcome == "FAIL")
        assert ("Cut short" in page.one("header").text) == interrupted
