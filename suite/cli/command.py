"""What the commands share: how one ends early, and the values that their options take."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from suite.records.files import is_inside
from suite.room.reading import printable

Value = TypeVar("Value")

USAGE_ERROR = 4  # as pytest's


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

    Args:
        folder: of a command's files.
        option: chooses another one.
        inside: of which no link may lead out.

    Raises:
        Stop: it cannot be made, or a link leads out.
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
