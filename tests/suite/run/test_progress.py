"""Lines of progress: which are one phase, and how they look in a terminal and in a log."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from suite.run.progress import Progress, fitted, phase

EPOCHS = [
    "training ddp, seed 1: epoch 1 of 2; at most 1.0 min left",
    "training ddp, seed 1: epoch 1 of 2, accuracy 0.50 ▅; at most 0.9 min left",
    "training ddp, seed 1: epoch 2 of 2, accuracy 0.90 ▅█; at most 0.8 min left",
]
SEEDS = [*EPOCHS, *(line.replace("seed 1", "seed 2") for line in EPOCHS)]


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("session 2: block 3 of 4; at most 1.0 min left", "session 2"),
        ("training ddp, seed 1: epoch 3 of 4, accuracy 0.9; at most 1 min left", "training ddp, seed 1"),
        ("loading the dataset digits", "loading the dataset digits"),
    ],
)
def test_phase_leaves_out_block_epoch_and_time(line: str, about: str) -> None:
    assert phase(line) == about


@pytest.mark.parametrize(("length", "shown"), [(79, "x" * 79), (80, "x" * 78 + "…"), (200, "x" * 78 + "…")])
def test_line_never_fills_the_last_column_of_a_terminal(length: int, shown: str) -> None:
    assert fitted("x" * length, 80) == shown


def through_pytest(*, isatty: bool, lines: list[str]) -> list[str]:
    """Return what `Progress` writes to a reporter."""
    heard: list[str] = []
    plugins: dict[str, Any] = {
        "terminalreporter": SimpleNamespace(
            isatty=isatty,
            rewrite=lambda text, erase: heard.append(text),
            write=heard.append,
            write_line=heard.append,
            flush=lambda: None,
        ),
        "capturemanager": SimpleNamespace(global_and_fixture_disabled=io.StringIO),
    }
    config: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=plugins.get),
        get_terminal_writer=lambda: SimpleNamespace(fullwidth=40),
    )
    show = Progress(config)
    for line in lines:
        show(line)
    return heard


def test_a_log_has_one_line_per_training() -> None:
    assert through_pytest(isatty=False, lines=SEEDS) == [f"scaling: {SEEDS[0]}", f"scaling: {SEEDS[3]}"]


def test_terminal_of_pytest_shows_every_epoch_in_one_row() -> None:
    assert [len(line) < 40 for line in through_pytest(isatty=True, lines=EPOCHS)] == [True] * 3


def test_terminal_of_pytest_keeps_a_line_without_the_time_left_whole() -> None:
    plan = "plan: 12 cell(s), each with one base of another commit, at most 3.0 min"
    assert through_pytest(isatty=True, lines=[EPOCHS[0], plan]) == [
        "scaling: training ddp, seed 1: epoch 1…",
        f"scaling: {plan}",
        "\n",
    ]
