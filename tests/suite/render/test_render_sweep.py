"""A sweep's figures and sentences, in the terminal and as Markdown."""

from __future__ import annotations

import re

from suite.records.sweep import Setting, Start, Sweep
from suite.render import sweep as render
from suite.render.sweep import COLUMNS, best_start, results
from tests.support.sweeps import grid, net, sweep

HOSTILE = "<script>alert(1)</script>|`x`\n# heading"


def falling(setting: Setting, seed: int) -> float:
    """.9 up to a rate of .2, falling by .1 for each further .1; warmed up it stays; seed 2 is .02 better everywhere."""
    lost = 0.0 if setting.warmup else max(0.0, setting.lr - 0.2)
    return 0.88 - lost + 0.02 * seed - 0.04 * (setting.world_size == 2)


def row(whole: Sweep, lr: float, rule: str) -> dict[str, str]:
    [found] = [each for each in results(whole) if (each.row.start.lr, each.row.rule) == (lr, rule)]
    return dict(zip(COLUMNS, found.texts(), strict=True))


def sentences(whole: Sweep) -> list[str]:
    return render.sentences(whole, results(whole))


def test_a_row_shows_its_setting_and_the_figures_of_its_nets() -> None:
    assert row(sweep(falling), 0.2, "linear") == {
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
    alone = row(sweep(falling), 0.1, "-")
    assert (alone["- 1 device"], alone["accuracy"]) == ("-", "0.910 ± 0.014")


def test_differences_are_paired_by_seed() -> None:
    """The seeds differ by .3 and the rule costs .01 with each of them: the interval does not contain the distance."""
    far = sweep(lambda setting, seed: 0.3 * seed - 0.01 * (setting.world_size == 2))
    assert row(far, 0.1, "book")["- 1 device"] == "-0.010 [-0.010, -0.010]"
    swapped = [one.model_copy(update={"seed": 3 - one.seed}) if one.world_size == 2 else one for one in far.trained]
    mixed = far.model_copy(update={"trained": tuple(swapped)})
    assert row(mixed, 0.1, "book")["- 1 device"] != "-0.010 [-0.010, -0.010]"


def test_one_seed_has_no_spread_and_no_interval() -> None:
    single = row(sweep(falling, grid=grid(seeds=1)), 0.1, "constant")
    assert (single["accuracy"], single["- 1 device"]) == ("0.860", "-0.040")


def test_rows_without_nets_are_left_out() -> None:
    assert results(sweep()) == []
    assert [each.row.rule for each in results(sweep(trained=(net(Setting(2, 64, 0.15, False), 1),)))] == ["book"]


def test_oversubscribed_seconds_say_so() -> None:
    crowded = sweep(trained=(net(Setting(1, 32, 0.1, False), 1, oversubscribed=True),))
    assert row(crowded, 0.1, "-")["sec/epoch"] == "1 (oversubscribed)"


def test_the_rate_is_not_raised_without_limit() -> None:
    """The warmed-up net at the largest rate is another matter, and does not hide the fall."""
    said = sentences(sweep(falling))
    assert "2 device(s), batch 64: best at lr 0.1 (0.870); the largest, 0.4, reaches 0.670." in said
    rising = sentences(sweep(lambda setting, seed: setting.lr))
    assert "1 device(s), batch 32: best at lr 0.2 (0.200), the largest that was tried; a larger one may be" in rising[0]


def test_every_rule_is_compared_at_the_best_start_of_one_device() -> None:
    said = sentences(sweep(falling))[-1]
    assert said.startswith("From (32, 0.1), the best of one device, to 2 devices the accuracy changes by: ")
    assert "constant (lr 0.1) -0.040 [-0.040, -0.040]" in said
    assert "linear (lr 0.2) -0.040 [-0.040, -0.040], linear (lr 0.2 after warm-up) -0.040" in said
    assert said.endswith("(2 seed(s)).")
    rows = results(sweep(lambda setting, seed: setting.lr if setting.world_size == 1 else 1 - setting.lr))
    assert (best_start(rows, 32), best_start(rows, 64)) == (Start(32, 0.2), None)


def test_without_one_device_the_rules_are_not_compared() -> None:
    [said] = sentences(sweep(falling, grid=grid(world_sizes=(2,))))
    assert "From" not in said


def test_markdown_has_the_sentences_and_the_table_and_escapes_text() -> None:
    shown = render.markdown(sweep(falling))
    assert shown.startswith("# Sweep: ddp, lenet on digits\n")
    assert "- 2 device(s), batch 64: best at lr 0.1 (0.870); the largest, 0.4, reaches 0.670.\n" in shown
    assert "| 32, 0.2 | 2 | linear | 64 | 0.4 | 0.670 ± 0.014 | -0.240 [-0.240, -0.240] | 1 | 2 | ▂▄▆ |\n" in shown
    assert "so one sample changes the accuracy by 0.0028" in shown
    assert "torch 2.15.0" in shown
    hostile = render.markdown(sweep(falling, trainer=HOSTILE, dataset=HOSTILE, failed=(HOSTILE,)))
    assert "&lt;script&gt;" in hostile
    assert not any(text in hostile for text in ("<script>", "|`x`", "\n# heading"))


def test_the_terminal_has_the_table_the_sentences_and_what_failed() -> None:
    whole = sweep(falling, failed=("2 device(s): rank 1: gone [bold]",))
    shown = render.terminal(whole.model_copy(update={"trained": whole.trained[:-1]}), 80)
    assert re.search(r"32, 0\.2 +2 +linear +64 +0\.4 +0\.670 ± 0\.014", shown)
    assert "the largest, 0.4, reaches 0.670." in shown
    assert "1 net is missing." in shown
    assert "failed: 2 device(s): rank 1: gone [bold]" in shown
