"""Lines of progress: which are the same phase, and how they look in a terminal and in a log."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from suite.run import progress
from suite.run.progress import Progress, StreamProgress, fitted, phase

EPOCHS = [
    "training ddp, seed 1: epoch 1 of 2; at most 1.0 min left",
    "training ddp, seed 1: epoch 1 of 2, accuracy 0.50 ▅; at most 0.9 min left",
    "training ddp, seed 1: epoch 2 of 2, accuracy 0.90 ▅█; at most 0.8 min left",
]
SEEDS = [*EPOCHS, *(line.replace("seed 1", "seed 2") for line in EPOCHS)]


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("session 2: block 3 of 4; at most 1.0 min left", "session 2"),
        ("training ddp, seed 1: epoch 3 of 4, accuracy 0.9; at most 1 min left", "training ddp, seed 1"),
        ("loading the dataset digits", "loading the dataset digits"),
    ],
)
def test_a_phase_is_what_does_not_tick(line: str, about: str) -> None:
    assert phase(line) == about


def test_a_line_never_fills_the_terminals_last_column() -> None:
    """There it would break, and only its last row could be rewritten."""
    assert fitted("x" * 79, 80) == "x" * 79
    for length in (80, 200):
        assert fitted("x" * length, 80) == "x" * 78 + "…"


class TestThroughPytest:
    """`Progress`, with a reporter that only listens."""

    def said(self, *, isatty: bool, lines: list[str]) -> list[str]:
        heard: list[str] = []
        reporter: Any = SimpleNamespace(
            isatty=isatty,
            rewrite=lambda text, erase: heard.append(text),
            write_line=heard.append,
            flush=lambda: None,
        )
        capture = SimpleNamespace(global_and_fixture_disabled=lambda: io.StringIO())
        found = {"terminalreporter": reporter, "capturemanager": capture}
        config: Any = SimpleNamespace(
            pluginmanager=SimpleNamespace(get_plugin=found.get),
            get_terminal_writer=lambda: SimpleNamespace(fullwidth=40),
        )
        show = Progress(config)
        for line in lines:
            show(line)
        return heard

    def test_a_log_has_a_line_a_training(self) -> None:
        assert self.said(isatty=False, lines=SEEDS) == [f"scaling: {SEEDS[0]}", f"scaling: {SEEDS[3]}"]

    def test_a_terminal_has_every_epoch_in_one_row(self) -> None:
        heard = self.said(isatty=True, lines=EPOCHS)
        assert len(heard) == 3
        assert all(len(line) < 40 for line in heard)


class TestOnAStream:
    """The same for a command."""

    def test_a_log_has_a_line_a_training(self) -> None:
        stream = io.StringIO()
        show = StreamProgress(stream, "sweep")
        for line in SEEDS:
            show(line)
        show.end()
        assert stream.getvalue().splitlines() == [f"sweep: {SEEDS[0]}", f"sweep: {SEEDS[3]}"]

    def test_a_terminal_rewrites_one_row_and_keeps_what_is_to_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(progress.shutil, "get_terminal_size", lambda: SimpleNamespace(columns=40))
        stream = Terminal()
        show = StreamProgress(stream, "sweep")
        for line in EPOCHS:
            show(line)
        show.keep("done")
        rows = stream.getvalue().split("\n")
        assert len(rows) == 3, "one that changed, one that stays, and nothing"
        assert rows[0].count("\r\x1b[2K") == 3
        assert all(len(text) < 40 for text in rows[0].split("\r\x1b[2K"))
        assert rows[1:] == ["sweep: done", ""]

    def test_a_stream_without_blocks_gets_question_marks(self) -> None:
        raw = io.BytesIO()
        show = StreamProgress(io.TextIOWrapper(raw, encoding="ascii"), "sweep")
        show(EPOCHS[1])
        assert b"accuracy 0.50 ?" in raw.getvalue()
