"""Loads the plugin from a clone; where the distribution is installed, its entry point of the same name already has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from suite.room.quiet import available_cores

pytest_plugins = ["suite.plugin", "pytester", "tests.support.deadlines"]

# No deadline: a shared machine may hold up any example. Derandomised by default, so that a red run can be repeated.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=1000)
settings.load_profile("default")

# All tests with one of these markers are in one folder, and to collect the others takes longer than a trainer's checks.
FOLDERS = {"correctness": "suite", "scaling": "suite", "end_to_end": "tests/end_to_end"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the other folders out where only cells, only checks or only whole runs are asked for."""
    name = FOLDERS.get(config.getoption("markexpr"))
    if name is None:
        return None
    folder = Path(__file__).parent / name
    inside, above = folder in (collection_path, *collection_path.parents), collection_path in folder.parents
    return None if inside or above else True


MOST_PROCESSES = 4  # each loads torch


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Spread all tests over the cores, as `-n` would, where pytest-xdist is installed and nothing else was asked for.

    Half of their time is spent waiting for worker processes. One file, a keyword, a debugger or another set of tests
    (`-m end_to_end`, whose runs are timed) stays in this process; so does everything with `-n 0`.
    """
    option = config.option
    if hasattr(config, "workerinput"):  # one of those processes
        return
    everything = config.args_source is not pytest.Config.ArgsSource.ARGS and not option.keyword
    undecided = hasattr(option, "numprocesses") and option.numprocesses is None
    if undecided and everything and "not scaling" in option.markexpr and not (option.usepdb or option.collectonly):
        option.numprocesses = min(MOST_PROCESSES, len(available_cores()))
        option.dist = "worksteal"
