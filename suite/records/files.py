"""Reads and writes the files of a report folder: records, baselines, calibrations, sweeps.

A file from elsewhere is treated as hostile: it is limited in size, parsed as JSON only, and validated by its model. A
link may lead anywhere, and a process may end while it writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError

from suite.room.errors import printable
from suite.room.part import problem

_TEMPORARY = re.compile(r"\.[\w-]+\.(json|html|md)\.\w{8}")  # of `write_atomically`
MAX_RECORD_BYTES = 64 * 1024 * 1024
MAX_DIGITS = 20  # of a whole number

Model = TypeVar("Model", bound=BaseModel)


GITIGNORE = """\
# Runs write these files, which are no part of the code. baseline.json, accepted/, calibration.json are left to commit.
# This file is written where there is none: change it to commit more.
/.gitignore
/index.html
/runs/
/traces/
/sweeps/
.*.json.*
"""


class RecordError(ValueError):
    """A file is not a record that this version can read; the message is one line, whatever the file holds."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def read_model(path: Path, model: type[Model]) -> Model:
    """Read a JSON file of ours as `model`, whose field `schema_version` is a Literal of the versions that it reads.

    Raises:
        RecordError: missing, too large, truncated, foreign, or of a newer schema; the message says which, and the path.
    """
    try:
        content = json.loads(_read_bounded(path).decode(), parse_int=_whole)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}; check its path and rights") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not a whole JSON file (truncated?); restore it, or remove it") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(content, dict) and version is None:
        raise RecordError(f"{path}: it has no schema_version, which every file of ours has; restore it, or remove it")
    if isinstance(content, dict) and type(version) is not int:  # 5.0 and true equal whole numbers
        says = f"its schema_version is {str(version)[:40]}: expected a whole number"
        raise RecordError(f"{path}: {says}; restore it, or remove it")
    newest = max(get_args(model.model_fields["schema_version"].annotation))
    if isinstance(version, int) and version > newest:
        raise RecordError(
            f"{path}: a newer version wrote it (schema version {version} is newer than {newest}); "
            "update torch-scaling-suite"
        )
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise RecordError(f"{path}: {problem(error)}; restore it, or remove it") from error


def read_inside(folder: Path, path: Path, model: type[Model]) -> Model:
    """Read a JSON file of ours that belongs to a folder, which may itself be a link, as `read_model` does."""
    require_inside(folder, path)
    return read_model(path, model)


def is_inside(folder: Path, path: Path) -> bool:
    """Return whether a path lies in a folder once all links are followed; Git carries links."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def require_inside(folder: Path, path: Path) -> None:
    """Refuse with a RecordError a path that does not lie in a folder once all links are followed."""
    if not is_inside(folder, path):
        raise RecordError(f"{path}: a link leads out of the report folder; put the file or folder itself in its place")


def _read_bounded(path: Path) -> bytes:
    """Return the content of a regular file of bounded size. A link may lead to a pipe, or a device that never ends."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # opening a pipe would wait for a writer
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RecordError("not a regular file; put the file itself in its place")
        content = file.read(MAX_RECORD_BYTES + 1)
    if len(content) > MAX_RECORD_BYTES:
        raise RecordError(f"larger than {MAX_RECORD_BYTES} bytes: not a record of ours; remove it")
    return content


def _whole(digits: str) -> int:
    """Return a number that a float can hold."""
    if len(digits) > MAX_DIGITS:
        raise RecordError(f"a whole number of {len(digits)} digits; ours have {MAX_DIGITS} at most; remove it")
    return int(digits)


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path`, so that a reader sees the old file or the new one and never half of it.

    Raises:
        OSError: the folder cannot be made or written; what was at `path` is untouched then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:  # a buffer would be written, and fail, once more
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            left = memoryview(text.encode())
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_inside(folder: Path, path: Path, text: str) -> None:
    """Write a file that belongs to a folder, which may itself be a link, as `write_atomically` and `require_inside`."""
    require_inside(folder, path.parent)
    write_atomically(path, text)


def keep_from_git(machine: Path) -> None:
    """Let git ignore what runs write into a machine's folder, unless the folder has a .gitignore."""
    with contextlib.suppress(OSError), (machine / ".gitignore").open("x", encoding="utf-8") as file:
        file.write(GITIGNORE)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of `write_atomically` that killed processes left in a folder and below it.

    A process that still writes one holds its lock. A folder that is empty then goes too.
    """
    for path in list(folder.rglob(".*")):
        if _TEMPORARY.fullmatch(path.name):
            with contextlib.suppress(OSError):
                file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                    path.parent.rmdir()
                finally:
                    os.close(file)
