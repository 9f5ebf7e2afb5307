"""A sweep's figures and sentences, and its three faces; with text that would like to be markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from suite.records.sweep import Failed, Setting, Start, Sweep
from suite.render import sweep as render
from suite.render.sparkline import BLOCKS
from suite.render.sweep_figures import COLUMNS, best_start, found, sentences, texts
from tests.support.sweeps import grid, net, sweep

HOSTILE = "<script>alert(1)</script>|`x`\n# heading"


def falling(setting: Setting, seed: int) -> float:
    """.9 up to a rate of .2, falling by .1 for each further .1; warmed up it stays; seed 2 is .02 better everywhere."""
    lost = 0.0 if setting.warmup else max(0.0, setting.lr - 0.2)
    return 0.88 - lost + 0.02 * seed - 0.04 * (setting.world_size == 2)


def rows(whole: Sweep) -> dict[tuple[float, str], tuple[str, ...]]:
    return {(one.row.start.lr, one.row.rule): texts(one) for one in found(whole)}


def test_a_rows_figures() -> None:
    row = dict(zip(COLUMNS, rows(sweep(falling))[0.2, "linear"], strict=True))
    assert row == {
        "start": "32, 0.2",
        "k": "2",
        "rule": "linear",
        "batch": "64",
        "lr": "0.4",
        "accuracy": "0.670 ± 0.014",
        "- 1 device": "-0.240 [-0.240, -0.240]",
        "sec/epoch": "1",
        "seeds": "2",
        "mean curve": "▂▄▆",
    }


def test_one_device_is_compared_with_nothing() -> None:
    row = rows(sweep(falling))[0.1, "-"]
    assert row[COLUMNS.index("- 1 device")] == "-"
    assert row[COLUMNS.index("accuracy")] == "0.910 ± 0.014"


def test_differences_are_paired_by_seed() -> None:
    """Seeds far apart, a rule that costs .01 with each of them: an interval that does not know of the distance."""
    far = sweep(lambda setting, seed: 0.3 * seed - 0.01 * (setting.world_size == 2))
    assert rows(far)[0.1, "book"][COLUMNS.index("- 1 device")] == "-0.010 [-0.010, -0.010]"
    mixed = far.model_copy(
        update={
            "trained": tuple(
                one.model_copy(update={"seed": 3 - one.seed}) if one.world_size == 2 else one for one in far.trained
            )
        }
    )
    assert rows(mixed)[0.1, "book"][COLUMNS.index("- 1 device")] != "-0.010 [-0.010, -0.010]"


def test_one_seed_has_no_spread_and_no_interval() -> None:
    row = rows(sweep(falling, grid=grid(seeds=1)))[0.1, "constant"]
    assert row[COLUMNS.index("accuracy")] == "0.860"
    assert row[COLUMNS.index("- 1 device")] == "-0.040"


def test_rows_without_nets_are_left_out() -> None:
    assert found(sweep()) == []
    assert [one.row.rule for one in found(sweep(trained=(net(Setting(2, 64, 0.15, False), 1),)))] == ["book"]


def test_oversubscribed_seconds_say_so() -> None:
    crowded = sweep(trained=(net(Setting(1, 32, 0.1, False), 1, oversubscribed=True),))
    assert rows(crowded)[0.1, "-"][COLUMNS.index("sec/epoch")] == "1 (oversubscribed)"


class TestSentences:
    """How far the rate can be raised, and what each rule makes of it."""

    def test_the_rate_is_not_raised_without_limit(self) -> None:
        """The warmed-up net at the largest rate is another matter, and does not hide the fall."""
        said = "\n".join(sentences(sweep(falling)))
        assert "1 device(s), batch 32: best at lr 0.1 (0.910), the largest that was tried" not in said
        assert "2 device(s), batch 64: best at lr 0.1 (0.870); the largest, 0.4, comes to 0.670." in said

    def test_where_the_largest_is_best_there_may_be_better(self) -> None:
        said = sentences(sweep(lambda setting, seed: setting.lr))
        assert (
            "1 device(s), batch 32: best at lr 0.2 (0.200), the largest that was tried; a larger one may be" in said[0]
        )

    def test_every_rule_is_held_against_the_best_start_of_one_device(self) -> None:
        said = sentences(sweep(falling))[-1]
        assert said.startswith("From (32, 0.1), the best of one device, to 2 devices the accuracy changes by: ")
        assert "constant (lr 0.1) -0.040 [-0.040, -0.040]" in said
        assert "linear (lr 0.2) -0.040 [-0.040, -0.040], linear (lr 0.2 after warm-up) -0.040" in said
        assert said.endswith("(2 seed(s)).")

    def test_the_best_start_is_the_one_devices(self) -> None:
        found_ = found(sweep(lambda setting, seed: setting.lr if setting.world_size == 1 else 1 - setting.lr))
        assert best_start(found_, 32) == Start(32, 0.2)
        assert best_start(found_, 64) is None

    def test_without_one_device_nothing_is_held_against_it(self) -> None:
        said = sentences(sweep(falling, grid=grid(world_sizes=(2,))))
        assert len(said) == 1
        assert "From" not in said[0]


class Seen(HTMLParser):
    """The elements of a page, and what it says."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


class TestPage:
    """`sweep.html`."""

    def test_has_the_pictures_the_table_and_nothing_to_load(self) -> None:
        seen = Seen(render.html(sweep(falling)))
        assert seen.elements.count("figure") == 3, "accuracy by rule, learning curves, seconds"
        assert seen.elements.count("h1") == 1
        assert "script" not in seen.elements
        assert all(link.startswith(("#", "data:")) for link in seen.links)
        targets = re.findall(r'id="([\w-]+)"', render.html(sweep(falling)))
        assert {link[1:] for link in seen.links if link.startswith("#")} <= set(targets)
        for words in ("Accuracy by rule, 2 devices, batch 32 a device", "linear-warmup", "0.670 ± 0.014"):
            assert words in seen.text
        assert not set(BLOCKS) & set(seen.text), "nobody wants blocks read aloud"

    def test_a_point_says_which_rate_the_rule_made_and_how_far_the_seeds_are_apart(self) -> None:
        text = Seen(render.html(sweep(falling))).text
        assert "linear, learning rate on one device 0.2: 0.670 [0.660, 0.680] (lr 0.4, 2 seed(s))" in text
        assert "lowest to highest seed" in text

    @pytest.mark.parametrize("trained", [0, 1, 3])
    def test_an_unfinished_sweep_has_a_page(self, trained: int) -> None:
        whole = sweep(falling)
        part = whole.model_copy(update={"trained": whole.trained[:trained]})
        text = Seen(render.html(part)).text
        assert f"{len(part.missing())} nets are missing; the same command goes on" in text

    def test_a_large_grid_has_a_bounded_number_of_pictures(self) -> None:
        large = sweep(falling, grid=grid(batches=tuple(range(1, 21)), lrs=(0.1,), rules=("linear",), seeds=1))
        seen = Seen(render.html(large))
        assert seen.elements.count("figure") == render.MAX_CHARTS
        assert "29 more pictures are left out here" in seen.text


@pytest.mark.parametrize("face", [render.html, render.markdown])
def test_text_from_the_file_stays_text(face: object) -> None:
    assert callable(face)
    failed = Failed(world_size=2, batch=64, lr=0.1, warmup=False, seed=1, cause=HOSTILE)
    shown = face(sweep(falling, trainer=HOSTILE, dataset=HOSTILE, failed=(failed,)))
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    if face is render.markdown:
        assert "|`x`" not in shown
        assert "\n# heading" not in shown


def test_markdown_has_the_sentences_and_the_table() -> None:
    shown = render.markdown(sweep(falling))
    assert shown.startswith("# Sweep: ddp, lenet on digits\n")
    assert "- 2 device(s), batch 64: best at lr 0.1 (0.870); the largest, 0.4, comes to 0.670.\n" in shown
    assert "| 32, 0.2 | 2 | linear | 64 | 0.4 | 0.670 ± 0.014 | -0.240 [-0.240, -0.240] | 1 | 2 | ▂▄▆ |\n" in shown
    assert "one of which is 0.0028" in shown
    assert "torch 2.15.0" in shown


def test_the_terminal_has_them_too_and_what_failed() -> None:
    failed = Failed(world_size=2, batch=64, lr=0.1, warmup=False, seed=1, cause="rank 1: gone [bold]")
    shown = render.terminal(sweep(falling, failed=(failed,)), 80)
    assert re.search(r"32, 0\.2 +2 +linear +64 +0\.4 +0\.670 ± 0\.014", shown)
    assert "the largest, 0.4, comes to 0.670." in shown
    assert "failed: 2 device(s), batch 64, lr 0.1, seed 1: rank 1: gone [bold]" in shown
