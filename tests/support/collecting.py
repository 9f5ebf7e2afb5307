"""A pytest plugin of this repository: which folders are collected, and over how many processes tests are spread."""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path

import pytest

from suite.room.quiet import available_cores, fast_imports
from tests.support.project import REPOSITORY

FEW = 10_000  # objects; Python 3.12 itself freezes 375
MOST_PROCESSES = 4  # each loads torch
# All tests with one of these markers are in one folder, and to collect the others takes longer than a trainer's checks.
GATE = "end_to_end and not nightly"
FOLDERS = {"correctness": "suite", "scaling": "suite", "end_to_end": "tests/end_to_end", GATE: "tests/end_to_end"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the other folders out where only cells, only checks or only whole runs are asked for."""
    name = FOLDERS.get(config.getoption("markexpr"))
    if name is None:
        return None
    folder = REPOSITORY / name
    inside, above = folder in (collection_path, *collection_path.parents), collection_path in folder.parents
    return None if inside or above else True


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the garbage collector from looking through what all tests import, which takes it a quarter of a second.

    An inner run of pytest in the same process ends with a collection.
    """
    with fast_imports():
        result = yield
    if gc.get_freeze_count() < FEW:  # in the outer run
        gc.freeze()
        session.config.add_cleanup(gc.unfreeze)  # libraries look at their end for objects that were not collected
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Spread all tests over the cores, as `-n` would, where pytest-xdist is installed and nothing else was asked for.

    There is a process more than cores, because tests wait for worker processes; whole runs (`-m end_to_end`) and
    nightly tests get one for each core, because they are timed. One file, a keyword, a debugger or another set of tests
    stays in this process; so does everything with `-n 0`.
    """
    option = config.option
    if hasattr(config, "workerinput"):  # one of those processes
        return
    everything = config.args_source is not pytest.Config.ArgsSource.ARGS and not option.keyword
    undecided = hasattr(option, "numprocesses") and option.numprocesses is None
    whole_runs = option.markexpr in ("end_to_end", GATE, "nightly")
    spread = whole_runs or "not scaling" in option.markexpr
    if undecided and everything and spread and not (option.usepdb or option.collectonly):
        option.numprocesses = min(MOST_PROCESSES, len(available_cores()) + (not whole_runs))
        option.dist = "worksteal"
