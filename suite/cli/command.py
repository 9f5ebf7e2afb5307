"""What the commands share: their options' values, their folders, how one ends early, and processes that they start."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from suite.records.files import RecordError, is_inside, read_model
from suite.records.record import RECORD, Record
from suite.room import quiet
from suite.room.errors import printable
from suite.room.quiet import as_interrupts

Value = TypeVar("Value")
Known = TypeVar("Known")

USAGE_ERROR = 4  # as pytest's
LEAVING_S = 60.0  # for pytest to end its workers and to write what it has
TAIL_LINES = 6


class Stop(Exception):
    """End the command: `suite.__main__` prints the message to stderr and returns the status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@contextlib.contextmanager
def writing(place: Path, option: str) -> Iterator[None]:
    """Turn an OSError into a `Stop` that names the option which chooses another place."""
    try:
        yield
    except OSError as error:
        raise Stop(f"{place}: {error.strerror}; choose another {option}") from error


@contextlib.contextmanager
def new_folder(folder: Path, option: str, inside: Path | None = None) -> Iterator[None]:
    """Make a folder, which must not exist yet, and remove it again if nothing was written into it.

    A `Stop` says that it cannot be made, or that a link leads out of `inside`, and which `option` chooses another one.
    """
    if inside is not None and not is_inside(inside, folder):
        raise Stop(f"{printable(str(folder))}: a link leads out of the report folder; choose another {option}")
    with writing(folder, option):
        folder.mkdir(parents=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def whole_number(least: int = 1) -> Callable[[str], int]:
    """Return a type for argparse: whole numbers from `least` on."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, {least} or more")
        return int(text)

    return parse


def positive(text: str) -> float:
    """Parse a finite number above 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0, such as 0.25")
    return value


def several(parse: Callable[[str], Value]) -> Callable[[str], tuple[Value, ...]]:
    """Return a type for argparse: one or more values separated by commas, each kept once."""

    def parse_all(text: str) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))

    return parse_all


def machine_folder(record: Path) -> Path | None:
    """Return the folder of the machine that a record is kept under; None for a record that is kept elsewhere."""
    run = record.parent.resolve()  # not of what the record itself may be a link to
    return run.parent.parent if run.parent.name == "runs" else None


def known_of(machine: Path, read: Callable[[Path, str], Known | None], without: str) -> Known | None:
    """Read a machine's baseline or calibration, by its folder. If it is unreadable, say `without` and why on stderr."""
    try:
        return read(machine.parent, machine.name)
    except RecordError as error:
        print(f"{without}: {error}", file=sys.stderr)
        return None


def records_in(reports: Path) -> list[Record]:
    """Return the records in a report folder that can be read, the oldest first."""
    records = []
    for path in sorted(reports.glob(f"*/runs/*/{RECORD}"), key=lambda path: path.parent.name):
        with contextlib.suppress(RecordError):
            records.append(read_model(path, Record))
    return records


def in_own_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    limit_s: float | None = None,
) -> int:
    """Run a command in a session of its own and return its exit status.

    The command is asked to end when this process is interrupted or killed, or at the limit. Whatever is left of its
    process group is then killed.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it did not end within `limit_s`.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=functools.partial(quiet.die_with_parent, signal.SIGTERM),
    )
    try:
        return process.wait(limit_s)
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LEAVING_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass(frozen=True)
class Step:
    """One command of several that a page reports on; `name` says what works if its exit status is 0."""

    name: str
    command: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True)
class Tried:
    """The result of a step: `problem` is empty if it passed, and `log` has what it printed."""

    step: Step
    problem: str
    log: Path

    @property
    def evidence(self) -> list[str]:
        """The command, the end of its output, and the path of all of it, as an indented block."""
        said = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        lines = (f"$ {shlex.join(self.step.command)}", *said.splitlines()[-TAIL_LINES:], f"all of it: {self.log}")
        return [f"    {line}" for line in lines]


def try_all(steps: Sequence[Step], folder: Path) -> list[Tried]:
    """Run the steps one after the other. One that fails, hangs or cannot be started does not stop the others.

    A signal that ends a job interrupts the current step, and ends this process.
    """
    tried = []
    with as_interrupts():
        for number, step in enumerate(steps, start=1):
            print(f"{number} of {len(steps)}: {step.name} (at most {step.limit_s:.0f} s)", flush=True)
            tried.append(_try(step, folder / f"{number}.log"))
            print(f"    {tried[-1].problem or 'works'}", flush=True)
    return tried


def _try(step: Step, log: Path) -> Tried:
    with log.open("wb") as output:
        try:
            status = in_own_process(step.command, output=output, limit_s=step.limit_s)
        except OSError as error:
            return Tried(step, f"cannot be started: {error.strerror}: {step.command[0]}", log)
        except subprocess.TimeoutExpired:
            return Tried(step, f"no end within {step.limit_s:.0f} s", log)
    return Tried(step, f"exit status {status}" if status else "", log)
