"""Progress of a run: what tells the time left is rewritten in a terminal, and is a line for each phase anywhere else.

All other lines, as of the plan and of what else uses the machine, stay. A line is written between windows and epochs,
never during one.
"""

from __future__ import annotations

import re

import pytest

from suite.processes.failure import harmless

_CHANGING = re.compile(r";|: block |: epoch ")
_LEFT = re.compile(r"; (at most \S+ min left|past the budget)$")


def phase(line: str) -> str:
    """Return a line without what changes within one phase: the time left, the block, the epoch."""
    return _CHANGING.split(line, maxsplit=1)[0]


def fitted(line: str, columns: int) -> str:
    """Return a line that fits into one row of a terminal: of a wrapped line only the last row can be rewritten."""
    return line if len(line) < columns else line[: max(0, columns - 2)] + "…"


class Progress:
    """Writes through pytest's terminal reporter, also while pytest captures output."""

    def __init__(self, config: pytest.Config) -> None:
        self._reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._config = config
        self._last_phase = ""

    def __call__(self, line: str) -> None:
        """Show a line of progress; it may quote a file, or what a trainer says."""
        if self._reporter is None or self._capture is None:
            return
        line = harmless(line)
        with self._capture.global_and_fixture_disabled():
            if self._reporter.isatty:
                columns, whole = self._config.get_terminal_writer().fullwidth, f"scaling: {line}"
                stays = _LEFT.search(line) is None
                self._reporter.rewrite(whole if stays else fitted(whole, columns), erase=True)
                if stays:
                    self._reporter.write("\n")
            elif phase(line) != self._last_phase:
                self._last_phase = phase(line)
                self._reporter.write_line(f"scaling: {line}")
            self._reporter.flush()
