"""Every test has a deadline. conftest.py loads this as a plugin; the benchmark matrix, marked `scaling`, has none.

Two clocks run for each test. pytest-timeout, where it is installed, ends a test whose main thread still runs Python:
the test fails with all threads' stacks, and the run goes on. faulthandler's watchdog, a thread in C, also ends one
whose interpreter is frozen: it prints all threads' stacks to stderr, among them a frame that has the test's name, and
ends the run with status 1. The watchdog also looks after the import of each test module, where pytest-timeout is
installed, and after the end of the session.

`--timeout SECONDS`, pytest-timeout's option, sets another deadline for all tests; 0 switches both clocks off.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings

TEST_S = 100.0
ON_GPUS_S = 300.0  # the first check starts groups of each size, and every rank loads torch and opens its GPU
END_TO_END_S = 250.0
GRACE_S = 15.0  # the watchdog comes so much after pytest-timeout: the test has time to unwind
SHOWN_S = 10.0  # before a test's deadline it ends what it has started, so that it can show the output
WHOLE_S = END_TO_END_S - SHOWN_S  # for a process that a test of tests/end_to_end waits for
STDERR = pytest.StashKey[int]()


class Hung(BaseException):
    """A test ran past its deadline. It passes through hypothesis, which repeats an Exception to shrink its case."""


def deadline_s(item: pytest.Item) -> float:
    """Return the seconds that an item may take, setup and teardown included; 0 for no deadline."""
    if item.get_closest_marker("scaling"):
        return 0.0
    if (asked := item.config.getoption("timeout", None)) is not None:
        return float(asked)
    examples = max(1.0, settings().max_examples / 100)  # the nightly profile draws ten times as many
    if item.get_closest_marker("gpu"):
        return examples * ON_GPUS_S
    return examples * (END_TO_END_S if item.get_closest_marker("end_to_end") else TEST_S)


def inner_s(item: pytest.Item) -> float | None:
    """Return the seconds that an item gives a process whose output it shows; None where it has no deadline itself."""
    return deadline_s(item) - SHOWN_S if deadline_s(item) else None


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr open until the process ends; a captured test has another one."""
    config.stash[STDERR] = os.dup(2)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Watch the import of a test module where pytest-timeout is installed, which a user's first, slow run may lack."""
    if collector.config.pluginmanager.hasplugin("timeout"):
        _watch(collector.config, TEST_S)


def pytest_collection_finish() -> None:
    """Stop the clock of the last module.

    This hook is called where the plugin is loaded during collection, too, as by `--pyargs` from another project.
    """
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give pytest-timeout each item's deadline."""
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            if seconds := deadline_s(item):
                item.add_marker(pytest.mark.timeout(seconds, method="signal"))


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """Run an item as pytest does, under the watchdog and inside a frame that has the item's name."""
    runner: Any = item.config.pluginmanager.getplugin("runner")
    _watch(item.config, deadline_s(item))
    try:
        return _named(item.nodeid, runner.pytest_runtest_protocol)(item, nextitem)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None, object, object]:
    """Let pytest-timeout's signal raise `Hung`, because code under test may catch its own exception."""
    result = yield
    fail = signal.getsignal(signal.SIGALRM)
    if settings.method == "signal" and callable(fail):

        def end(signum: int, frame: FrameType | None) -> None:
            __tracebackhide__ = True
            try:
                fail(signum, frame)
            except pytest.fail.Exception as failure:
                raise Hung(str(failure)) from None

        signal.signal(signal.SIGALRM, end)
    return result


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Restart both clocks for the teardown: pytest and pytest-timeout stop them at a failure."""
    if isinstance(node, pytest.Item) and (marker := node.get_closest_marker("timeout")):
        import pytest_timeout

        again = pytest_timeout.Settings(marker.args[0], "signal", False, False)
        node.ihook.pytest_timeout_set_timer(item=node, settings=again)
    if isinstance(node, pytest.Item):
        _watch(node.config, deadline_s(node))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Watch the end of the session, when the interpreter waits for threads that are left."""
    _watch(session.config, TEST_S if any(deadline_s(item) for item in session.items) else 0.0)


def _watch(config: pytest.Config, seconds: float) -> None:
    if config.pluginmanager.hasplugin("timeout"):
        import pytest_timeout

        seconds = 0.0 if pytest_timeout.is_debugging() else seconds
    if seconds:
        faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True, file=config.stash[STDERR])
    else:
        faulthandler.cancel_dump_traceback_later()


def _named(name: str, call: Callable[..., object]) -> Callable[..., object]:
    """Return a function whose frame has this name, because the watchdog prints stacks only."""

    def frame(*arguments: object) -> object:
        return call(*arguments)

    frame.__code__ = frame.__code__.replace(co_name=name)
    return frame
