"""A sweep's table, in the terminal and on its page, and the page's picture."""

from __future__ import annotations

import re

from suite.records.sweep import Setting
from suite.render import html, terminal
from suite.render.sweep import document
from tests.support.pages import Page
from tests.support.sweeps import EPOCHS, net, sweep

HOSTILE = "<script>alert(1)</script>|`x`\n# heading"


def reached(setting: Setting, seed: int) -> float:
    """Seed 2 is .02 better, a second device costs .04, and the higher rate .1."""
    return 0.88 + 0.02 * seed - 0.04 * (setting.world_size == 2) - 0.1 * (setting.lr > 0.1)


def row(shown: str, start: str) -> str:
    """The line of a terminal's table that begins so, with single spaces."""
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    [found] = [line for line in lines if line.startswith(start)]
    return found


def test_a_row_has_mean_and_sd_over_seeds_and_the_mean_curve() -> None:
    shown = terminal.write(document(sweep(reached), [EPOCHS]), 80)
    assert row(shown, "1 32 0.1") == "1 32 0.1 0.910 ± 0.014 1 2 ▃▅█"
    assert row(shown, "2 64 0.2") == "2 64 0.2 0.770 ± 0.014 1 2 ▃▅▇"


def test_several_numbers_of_epochs_are_several_columns() -> None:
    """Nothing in a training depends on how many epochs are to come: the first of three are a training of one."""
    shown = terminal.write(document(sweep(reached, seeds=1), [1, EPOCHS]), 80)
    assert re.search(r"accuracy, 1 epoch +accuracy, 3 epochs", shown)
    assert row(shown, "1 32 0.1") == "1 32 0.1 0.300 0.900 1 1 ▃▅█"


def test_settings_without_nets_are_left_out_and_missing_ones_are_counted() -> None:
    part = sweep(trained=(net(Setting(2, 64, 0.2), 1),), failed=("2 device(s): rank 1: gone [bold]",))
    shown = terminal.write(document(part, [EPOCHS]), 80)
    assert "2 64 0.2" in " ".join(shown.split())
    assert "1 32" not in " ".join(shown.split())
    assert "1 net, each fresh from its seed; 360 test samples, so one changes the accuracy by 0.0028." in shown
    assert "Missing: 7 nets; the same command with this folder as --out trains them." in shown
    assert "failed: 2 device(s): rank 1: gone [bold]" in shown


def test_oversubscribed_seconds_say_so() -> None:
    crowded = sweep(trained=(net(Setting(1, 32, 0.1), 1, oversubscribed=True),))
    assert "1 (oversubscribed)" in terminal.write(document(crowded, [EPOCHS]), 80)


def test_the_page_has_the_table_and_a_curve_for_each_number_of_devices() -> None:
    text = html.write(document(sweep(reached), [EPOCHS]))
    page = Page(text)
    assert "Sweep: ddp, lenet on digits" in text
    assert "0.770 ± 0.014" in page.section("nets")
    assert "Accuracy after 3 epochs" in text
    assert "k = 2, batch 64, learning rate 0.2: 0.770 [0.760, 0.780]" in text, "the lowest and the highest seed"
    assert "torch 2.15.0" in text


def test_nothing_in_a_sweep_becomes_markup() -> None:
    hostile = html.write(document(sweep(reached, trainer=HOSTILE, dataset=HOSTILE, failed=(HOSTILE,)), [EPOCHS]))
    assert "&lt;script&gt;" in hostile
    assert "<script>" not in hostile


def test_a_sweep_without_nets_has_a_page() -> None:
    assert "Missing: 8 nets" in html.write(document(sweep(), [EPOCHS]))
