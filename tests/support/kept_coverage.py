"""A pytest plugin for `tox -e coverage`: pools let their processes leave, because coverage loses those that are killed.

It acts in processes that load it: the test's own, and runs inside of it. What a run in another process starts is killed
at its end as ever, and so is what a test kills.
"""

from __future__ import annotations

import contextlib
import subprocess

from suite.processes.group import END_TIMEOUT_S
from suite.processes.pool import Pool, dismiss

_kill = Pool.close


def _leave(pool: Pool) -> None:
    """Ask workers, and then the launcher, to leave; end those that do not."""
    dismiss([pool])
    if pool._other_hosts is None and pool._launcher is not None:
        pool.forget(pool._launcher)
        with contextlib.suppress(subprocess.TimeoutExpired):
            pool._process.wait(END_TIMEOUT_S)
    _kill(pool)


def pytest_configure() -> None:
    """Take the place of `Pool.close`, for the whole process."""
    Pool.close = _leave  # type: ignore[method-assign]
