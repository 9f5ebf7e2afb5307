"""Progress while a run measures: one line that changes in a terminal, a line for each phase anywhere else.

Nothing ticks in the background: a line is written between windows, never during one.
"""

from __future__ import annotations

import pytest


class Progress:
    """Writes through pytest's terminal reporter, past the capturing of output."""

    def __init__(self, config: pytest.Config) -> None:
        self._reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._last_phase = ""

    def __call__(self, line: str) -> None:
        """Show what is going on."""
        if self._reporter is None or self._capture is None:
            return
        with self._capture.global_and_fixture_disabled():
            if self._reporter.isatty:
                self._reporter.rewrite(f"scaling: {line}", erase=True)
            elif (phase := line.partition(";")[0].partition(": block")[0]) != self._last_phase:
                self._last_phase = phase
                self._reporter.write_line(f"scaling: {line}")
            self._reporter.flush()
