"""Progress while a run measures: one line that changes in a terminal, a line for each phase anywhere else.

Nothing ticks in the background: a line is written between windows and epochs, never during one.
"""

from __future__ import annotations

import re
import shutil
from typing import TextIO

import pytest

_TICKING = re.compile(r";|: block |: epoch ")


def phase(line: str) -> str:
    """What a line is about, without what changes from one to the next: the time left, the block, the epoch."""
    return _TICKING.split(line, maxsplit=1)[0]


def fitted(line: str, columns: int) -> str:
    """A line that a terminal of this width does not break: of a broken one only the last row would be rewritten."""
    return line if len(line) < columns else line[: max(0, columns - 2)] + "…"


class Progress:
    """Writes through pytest's terminal reporter, past the capturing of output."""

    def __init__(self, config: pytest.Config) -> None:
        self._reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._config = config
        self._last_phase = ""

    def __call__(self, line: str) -> None:
        """Show what is going on."""
        if self._reporter is None or self._capture is None:
            return
        with self._capture.global_and_fixture_disabled():
            if self._reporter.isatty:
                columns = self._config.get_terminal_writer().fullwidth
                self._reporter.rewrite(fitted(f"scaling: {line}", columns), erase=True)
            elif phase(line) != self._last_phase:
                self._last_phase = phase(line)
                self._reporter.write_line(f"scaling: {line}")
            self._reporter.flush()


class StreamProgress:
    """The same for a command that is not pytest."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name
        self._last_phase = ""
        self._open = False

    def __call__(self, line: str) -> None:
        """Show what is going on."""
        if self._stream.isatty():
            self.write(f"\r\x1b[2K{fitted(f'{self._name}: {line}', shutil.get_terminal_size().columns)}")
            self._open = True
        elif phase(line) != self._last_phase:
            self._last_phase = phase(line)
            self.write(f"{self._name}: {line}\n")

    def keep(self, line: str) -> None:
        """Show a line that stays, whatever comes after it."""
        self.end()
        self.write(f"{self._name}: {line}\n")

    def end(self) -> None:
        """Close the line that changes, so that others can write."""
        if self._open:
            self.write("\n")
            self._open = False

    def write(self, text: str) -> None:
        """Write as it is, as far as the stream's encoding can: block characters are no reason to fail."""
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()
