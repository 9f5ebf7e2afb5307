"""A pytest plugin (`-p tests.support.faults.plugin`) that holds the controller where it is about to write a file.

It replaces nothing: an audit hook of the interpreter is told of every file before it is opened or renamed. It also
gives workers a clock of their own, and has torch's agent execute them, where the campaign asks for either.

The processes of a run tell the campaign where they are, and hear what to do, by signs: files in one folder. The
folder's path is in the environment, which every process of a run inherits.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.faults.machine import CLOCK_FILE

# EVENT:NAME:N holds before the N-th time that a temporary file for NAME is opened or renamed.
HOLD_AT = "FAULTS_HOLD_AT"
WORKERS_CLOCK = "FAULTS_WORKERS_CLOCK"  # the file that libfaketime reads in workers, where they have their own
EXECUTE = "FAULTS_EXECUTE"  # set: torch's agent executes workers, as on systems whose processes cannot be forked
FOLDER = "FAULTS_SIGNS"
STEPPED, HELD, RELEASED, ARMED, FIRED = "stepped", "held", "released", "armed", "fired"
HELD_S = 20.0  # a held process goes on after this long, whatever the campaign does
POLL_S = 0.005


def folder() -> Path | None:
    """Return the folder of this run's signs; None outside of a run with a fault."""
    return Path(os.environ[FOLDER]) if FOLDER in os.environ else None


def show(sign: str) -> bool:
    """Make a sign, and say whether this process was the first to make it."""
    here = folder()
    if here is None:
        return False
    with contextlib.suppress(FileExistsError):
        os.close(os.open(here / sign, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return True
    return False


def shown(sign: str) -> bool:
    here = folder()
    return here is not None and os.path.exists(here / sign)


def hold() -> None:
    """Tell the campaign that this process waits, and wait until it lets it go on."""
    deadline = time.monotonic() + HELD_S
    if show(HELD):
        while not shown(RELEASED) and time.monotonic() < deadline:
            time.sleep(POLL_S)


def pytest_configure() -> None:
    """Do what the environment asks for."""
    if HOLD_AT in os.environ:
        sys.addaudithook(_Holds(*os.environ[HOLD_AT].split(":")))
    if WORKERS_CLOCK in os.environ:
        own = os.environ[CLOCK_FILE]
        os.environ[CLOCK_FILE] = os.environ[WORKERS_CLOCK]  # processes inherit this
        ctypes.CDLL(None).setenv(CLOCK_FILE.encode(), own.encode(), 1)  # libfaketime reads this, in this process
    if EXECUTE in os.environ:
        del os.pidfd_open


class _Holds:
    """An audit hook: counts how often one thing happens to a file, and holds at one of these times."""

    def __init__(self, event: str, name: str, number: str) -> None:
        self._event, self._prefix, self._left = event, f".{name}.", int(number)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != self._event or not isinstance(arguments[0], str) or self._left <= 0:
            return
        if Path(arguments[0]).name.startswith(self._prefix):
            self._left -= 1
            if self._left == 0:
                hold()
