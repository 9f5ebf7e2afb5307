"""A pytest plugin for `tox -e coverage`: pools let their processes leave, because coverage loses those that are killed.

It acts in processes that load it: the test's own, and runs inside of it. What a run in another process starts is killed
at its end as ever, and so is what a test kills.
"""

from __future__ import annotations

from suite.processes.group import END_TIMEOUT_S, dismiss
from suite.processes.launchers import LauncherProcess, Launchers
from suite.processes.pool import Pool

_close, _end = Pool.close, Launchers._end


def _leave(pool: Pool) -> None:
    """Ask workers to leave, and end those that do not."""
    dismiss([pool])
    _close(pool)


def _let_leave(launchers: Launchers, launcher: LauncherProcess) -> None:
    """Let launcher or template see that the controller has gone, and end one that does not leave for it."""
    if launcher.channel is not None:
        launchers._forget(launcher.channel)
        launcher.wait(END_TIMEOUT_S)
    _end(launchers, launcher)


def pytest_configure() -> None:
    """Take the place of two methods, for the whole process."""
    Pool.close = _leave  # type: ignore[method-assign]
    Launchers._end = _let_leave  # type: ignore[method-assign]
