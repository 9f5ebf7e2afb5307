"""A pytest plugin (`-p tests.support.one_session`) that ends a run without a base after its first session."""

from __future__ import annotations

import pytest

from suite.run import schedule


def pytest_configure(config: pytest.Config) -> None:
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setattr(schedule, "MAX_SESSIONS", dict.fromkeys(schedule.MAX_SESSIONS, 1))
