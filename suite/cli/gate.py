"""How the commands run the gate that `pytest -m scaling` is: in this process, with what came of it in hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from suite import options
from suite.plan.config import Config
from suite.plugin import CONFIG, RUN
from suite.run.execute import RunResult

# Named as modules, so that they are found from a clone and from any project that only has them installed.
SCALING = ("-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling", "-m", "scaling")
CORRECTNESS = ("-p", "suite.plugin", "--pyargs", "suite.checks", "-m", "correctness")

# The plugin is in this process already, which pytest warns of; it has no asserts to be rewritten.
_LOADED = ("-W", "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning")


@dataclass
class Ended:
    """What came of a run of pytest.

    Attributes:
        status: pytest's exit status.
        run: the run behind the cells; None where none began.
        interrupted: by Ctrl-C. Pytest's status is the same for a file that cannot be collected.
    """

    status: int
    run: RunResult | None
    interrupted: bool


def run(arguments: Sequence[str], change: Callable[[Config], Config] = lambda settings: settings) -> Ended:
    """Run pytest on the cells, in this process.

    Args:
        arguments: added to `SCALING`, which they may override.
        change: is given the settings when all options are read; what it returns holds.
    """
    watch = _Watch(change)
    status = pytest.main([*SCALING, *_LOADED, *arguments], plugins=[watch])
    return Ended(int(status), watch.run, watch.interrupted)


def settings(arguments: Sequence[str]) -> Config | int:
    """The settings that pytest would have, without collecting or measuring; its exit status where they are wrong."""
    asking = _Asking()
    status = pytest.main([*SCALING, *_LOADED, *arguments], plugins=[asking])
    return int(status) if asking.settings is None else asking.settings


class _Watch:
    def __init__(self, change: Callable[[Config], Config]) -> None:
        self.run: RunResult | None = None
        self.interrupted = False
        self._change = change

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[CONFIG] = self._change(config.stash[CONFIG])

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # Errors while collecting come here too, as a subclass, and so does pytest.exit().
        self.interrupted = excinfo.type is KeyboardInterrupt

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        self.run = config.stash.get(RUN, None)


class _Asking:
    def __init__(self) -> None:
        self.settings: Config | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        self.settings = options.read(config)
        return 0
