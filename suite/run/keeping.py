"""Keep a run's files: its record from before the first session on and after each, its pages at the end.

Where the report folder cannot be written any more, the run goes on, and its files go to a fallback folder.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from suite.records.files import RecordError, remove_unfinished, write_atomically
from suite.records.record import RECORD, Record
from suite.run.session import Say

Write = Callable[[Path], None]


def write_record(folder: Path, record: Record) -> None:
    """Write a record into the folder of its run.

    Raises:
        OSError: the folder cannot be written; an earlier record there is untouched.
    """
    write_atomically(folder / RECORD, record.model_dump_json(indent=1) + "\n")


class Keeper:
    """Where the files of one run go.

    Attributes:
        folder: the run's own, or the fallback folder.
        problem: why the files are not where the user wanted them, in words; empty where they are.
    """

    def __init__(self, wanted: Path, first: Write, say: Say) -> None:
        """Make the run's folder and write its first file, so that a folder of no use is noticed before measuring.

        Unfinished files that killed runs left next to it are removed.

        Args:
            wanted: the folder; one with a number after its name where another run has it.
            first: writes into the folder that it is called with.
            say: is told of a folder that cannot be written any more.

        Raises:
            RecordError: the folder cannot be made or written.
        """
        self.problem, self._say = "", say
        remove_unfinished(wanted.parent)
        try:
            self.folder = new_folder(wanted)
            try:
                first(self.folder)
            finally:
                with contextlib.suppress(OSError):  # it has its first file, or its disk is read-only
                    self.folder.rmdir()
        except OSError as error:
            raise RecordError(f"{wanted.parent}: {error.strerror}; choose another --scaling-report-dir") from error

    def keep(self, write: Write) -> None:
        """Call `write` with the run's folder, and again with a fallback folder where the first one fails."""
        try:
            return write(self.folder)
        except OSError as error:
            failed = f"the report folder {self.folder} cannot be written ({error.strerror})"
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=f"scaling-report-{self.folder.name}-"))
            write(self.folder)
            self.problem = f"{failed}: this run's files are in {self.folder}; move them, or run again with space"
        except OSError as error:
            other = f"neither can {tempfile.gettempdir()} ({error.strerror})"
            self.problem = f"{failed}, and {other}: nothing more is kept; free space"
        self._say(self.problem)


def new_folder(wanted: Path) -> Path:
    """Make a folder of this name, or of this name and a number where another run has it."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    folder, number = wanted, 1
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1
            folder = wanted.with_name(f"{wanted.name}-{number}")
