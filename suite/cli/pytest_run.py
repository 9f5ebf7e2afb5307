"""Runs pytest on the cells in this process, for commands that use its settings, its selection or its results."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from suite import options
from suite.base.sides import Sides
from suite.cli.command import USAGE_ERROR, Stop
from suite.plan.cells import Cell
from suite.plan.config import Config
from suite.plugin import CONFIG, RUN, CannotRun
from suite.room.devices import one_host
from suite.run.execute import RunResult
from suite.run.observations import Observations
from suite.run.plan import plan_here

# Named as modules, so that they are found from a clone and from any project that only has them installed.
SCALING = ("-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling", "-m", "scaling")
CORRECTNESS = ("-p", "suite.plugin", "--pyargs", "suite.checks", "-m", "correctness")

# The plugin is in this process already, which pytest warns of; it has no asserts to be rewritten.
_LOADED = ("-W", "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning")
# Where nothing runs, pytest has only errors to show, which it prints even so.
_SILENT = ("-qq", "--disable-warnings")


@dataclass
class Ended:
    """How a pytest run ended, and what it read or measured.

    `cells` are those that were selected, in pytest's order, where only the selection was wanted; none are where
    requested devices are missing.
    """

    status: int = 0  # pytest's exit status
    settings: Config | None = None  # of the run; None where pytest did not get as far
    cells: tuple[Cell, ...] = ()
    run: RunResult | None = None  # the run behind the cells; None where none began
    interrupted: bool = False  # by Ctrl-C. Pytest's status is the same for a file that cannot be collected.


def run(arguments: Sequence[str], change: Callable[[Config], Config] = lambda settings: settings) -> Ended:
    """Run pytest on the cells, in this process, with these arguments after `SCALING`.

    The run uses what `change` makes of the settings when all options are read.
    """
    return _ended(arguments, _Hooks(change, only_collect=False))


def settings(arguments: Sequence[str]) -> Config:
    """Return the settings that pytest would have; a SystemExit with pytest's status where it has refused them."""
    reader = _Reader()
    status = pytest.main([*SCALING, *_LOADED, *arguments], plugins=[reader])
    if reader.settings is None:
        raise SystemExit(int(status))
    return reader.settings


def add_report_dir(parser: argparse.ArgumentParser) -> None:
    """Declare the one option of pytest's that matters to commands that measure nothing."""
    parser.add_argument("--scaling-report-dir", metavar="DIR", help="the report folder (default: as pytest's)")


def report_dir(option: str | None) -> Path:
    """Return the report folder that pytest would use; `option` is the value of `--scaling-report-dir`, if given."""
    return settings([] if option is None else [f"--scaling-report-dir={option}"]).report_dir


def select(arguments: Sequence[str]) -> Ended:
    """Collect as `run` would, and run nothing."""
    return _ended([*_SILENT, *arguments], _Hooks(lambda settings: settings, only_collect=True))


def require_one_host(settings: Config) -> None:
    """Refuse devices on several hosts with a `Stop`."""
    try:
        one_host(settings.devices)
    except ValueError as error:
        raise Stop(str(error), USAGE_ERROR) from error


def without_base(settings: Config, cells: Sequence[Cell]) -> Observations:
    """Return a run of these cells on one host that compares with nothing, for commands that judge nothing."""
    require_one_host(settings)
    return Observations(plan_here(dataclasses.replace(settings, against=None), cells))


def sides(settings: Config) -> Sides:
    """Return the pools of a command that starts workers itself; a `Stop` where there is no place for their files."""
    try:
        return Sides(settings.devices.kind, settings.root, settings.python_path, renewed=False)
    except ValueError as error:
        raise Stop(str(error)) from error


def _ended(arguments: Sequence[str], hooks: _Hooks) -> Ended:
    hooks.ended.status = int(pytest.main([*SCALING, *_LOADED, *arguments], plugins=[hooks]))
    return hooks.ended


class _Hooks:
    def __init__(self, change: Callable[[Config], Config], *, only_collect: bool) -> None:
        self.ended = Ended()
        self._change, self._only_collect = change, only_collect

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        self.ended.settings = config.stash[CONFIG] = self._change(config.stash[CONFIG])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run nothing where only the selection is wanted, except the item that says which devices are missing."""
        missing = any(isinstance(item, CannotRun) for item in session.items)
        if not self._only_collect or session.testsfailed or missing:
            return None  # pytest goes on, and reports what could not be collected
        parameters = [item.callspec.params for item in session.items if hasattr(item, "callspec")]
        self.ended.cells = tuple(each["scaling_cell"] for each in parameters if "scaling_cell" in each)
        return True

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # Called for errors while collecting, as a subclass, and for pytest.exit() too.
        self.ended.interrupted = excinfo.type is KeyboardInterrupt

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        self.ended.run = config.stash.get(RUN, None)


class _Reader:
    settings: Config | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        self.settings = options.read(config)
        return 0
