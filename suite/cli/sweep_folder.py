"""The folder of a sweep: its file, which has every net as soon as it is trained, and what a reader opens."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from suite.records import sweep as sweep_record
from suite.records.record import RecordError, write_atomically
from suite.records.sweep import Failed, Setting, Sweep, Trained
from suite.render import sweep as render

FILES = ("sweep.json", "summary.md", "sweep.html")


class SweepFolder:
    """A sweep that goes on where its folder ends."""

    def __init__(self, folder: Path, fresh: Sweep) -> None:
        """Take over the nets that are there.

        Args:
            folder: may be new.
            fresh: the sweep without any.

        Raises:
            RecordError: the folder has something else, or nets that must not be mixed with these.
        """
        self._paths = [folder / name for name in FILES]
        older = sweep_record.read(self._paths[0])
        if older is not None and (differences := older.differences(fresh)):
            raise RecordError(
                f"{self._paths[0]} has nets that must not stand in one figure with these: {'; '.join(differences)}. "
                "Name another folder with --out, or remove this one"
            )
        self.sweep = fresh if older is None else fresh.model_copy(update={"trained": older.trained})

    def add(self, net: Trained) -> None:
        """Keep one more net.

        Raises:
            RecordError: it cannot be written; the nets before it are kept.
        """
        self.sweep = self.sweep.model_copy(update={"trained": (*self.sweep.trained, net)})
        self._write(self._paths[0], sweep_record.text(self.sweep))

    def fail(self, wanted: Setting, seed: int, cause: str) -> None:
        """Keep why there is none."""
        failed = Failed(**wanted._asdict(), seed=seed, cause=cause)
        self.sweep = self.sweep.model_copy(update={"failed": (*self.sweep.failed, failed)})

    def show(self) -> None:
        """Write the summary and the page.

        Raises:
            RecordError: they cannot be written.
        """
        texts = (sweep_record.text(self.sweep), render.markdown(self.sweep), render.html(self.sweep))
        for path, text in zip(self._paths, texts, strict=True):
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        try:
            write_atomically(path, text)
        except OSError as error:
            raise RecordError(f"{path}: {error.strerror}; choose another --out") from error


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep others out of the folder, which is made: two sweeps in it would write over each other's nets.

    Raises:
        RecordError: another one is at work in it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise RecordError(f"{folder}: {error.strerror}; choose another --out") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"{folder}: another sweep is at work in it; wait for it, or name another folder with --out"
            raise RecordError(message) from error
        yield
    finally:
        os.close(handle)
