"""Folders with locks that never outlive their owner: the kernel releases a lock (flock) when its process ends.

The owner of a temporary folder holds a lock on a file in it. A killed run leaves its folder with a free lock, and the
next run removes it. A report folder is locked while a file in it is changed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "scaling-"
FOLDER = "SCALING_FOLDER"  # in a worker's environment: the run's folder on its host
LOCK = ".torch-scaling-suite"  # no folder without such a file is ever removed
HELD_S = 30.0  # who holds a report folder reads and writes one small file


class TemporaryFolder:
    """A new folder with a name of its own, until `close` or the end of this process."""

    def __init__(self, what: str = "") -> None:
        """Make the folder in `tempfile.gettempdir()`, with `what` in its name, and remove those of dead runs there."""
        remove_abandoned()
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}{what}"))
        self._lock = os.open(made / LOCK, os.O_RDONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: nothing may remove the folder but its owner
            (made / LOCK).unlink()
        # From here on other runs see it, and its lock is held.
        self.path = made.rename(made.with_name(made.name[1:]))

    def close(self) -> None:
        """Remove the folder with everything in it; a second call does nothing."""
        if self._lock >= 0:
            _empty(self.path)
            os.close(self._lock)
            self._lock = -1
            with contextlib.suppress(OSError):
                self.path.rmdir()


def unusable(error: OSError) -> str:
    """Return a message for a folder that cannot be made in TMPDIR, or written."""
    place = f"{error.filename}: " if error.filename else ""
    return f"TMPDIR: {place}{error.strerror}; choose another TMPDIR"


def remove_abandoned() -> None:
    """Remove the folders of this user's runs that were killed; a living run holds the lock of its own."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            _remove_unless_owned(folder)


def _remove_unless_owned(folder: Path) -> None:
    """Remove a folder of ours whose lock is free; an OSError where it is not one of ours, or its owner lives."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        return
    lock = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _empty(folder)
    finally:
        os.close(lock)
    folder.rmdir()  # not before: while it is open, NFS keeps a removed file under another name


def _empty(folder: Path) -> None:
    """Remove what is in a folder, and then the lock: without one, no later run would go on where this one is killed."""
    entries: list[os.DirEntry[str]] = []
    with contextlib.suppress(OSError):
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name == LOCK)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder while a file in it is read, changed and written, so that no change of another process is lost.

    The lock is on the folder itself, so that no file is left.

    Raises:
        OSError: the folder cannot be made or locked, or another process has held it for `HELD_S` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle, deadline = os.open(folder, os.O_RDONLY), time.monotonic() + HELD_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    cause = f"another process has held its lock for {HELD_S:.0f} s: wait for its end"
                    raise TimeoutError(errno.ETIMEDOUT, cause, str(folder)) from None
            time.sleep(0.05)
        yield
    finally:
        os.close(handle)
