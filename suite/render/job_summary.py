"""A run's summary on the page of its GitHub Actions job: appended to the file that GITHUB_STEP_SUMMARY names.

GitHub shows nothing of a step whose file is larger than 1 MiB ("upload aborted, supports content up to a size of
1024k"), so a longer summary is cut before a section, with a sentence that says so.

Source: GitHub's documentation, "Workflow commands for GitHub Actions", "Adding a job summary".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

VARIABLE = "GITHUB_STEP_SUMMARY"
LIMIT_BYTES = 1024 * 1024  # of a step, and a step may run pytest more than once


def publish(summary: str, whole: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Append a summary in Markdown to the job's, where there is a job; `whole` is the file to be named where it is cut.

    Returns:
        Why the job does not have it, in a sentence; empty when it has it, or when this is no job. A file that cannot
        be written never raises, because a measurement must not fail for it.
    """
    path = environment.get(VARIABLE, "")
    if not path:
        return ""
    try:
        with open(path, "ab") as file:
            used = file.tell()
            before = b"\n" if used else b""  # a heading begins on a line of its own
            text = fit(summary, LIMIT_BYTES - used - len(before), whole)
            if not text:
                return f"{VARIABLE} {path}: {used} of {LIMIT_BYTES} bytes are used; the summary is only in {whole}"
            file.write(before + text)
    except OSError as error:
        return f"{VARIABLE} {path}: {error.strerror}; the summary is only in {whole}"
    return ""


def fit(summary: str, most_bytes: int, whole: Path) -> bytes:
    """Return as many whole sections of a summary as fit, in UTF-8; nothing where not even the first one does."""
    encoded = summary.encode(errors="replace")
    if len(encoded) <= most_bytes:
        return encoded
    note = f"**Cut here: GitHub shows {LIMIT_BYTES // 1024} KiB of a step. All of it is in {whole.name}.**\n".encode()
    fitting = [end for end in _ends(encoded) if end + len(note) <= most_bytes]
    return encoded[: fitting[-1]] + note if fitting else b""


def _ends(encoded: bytes) -> Iterator[int]:
    """Yield where a part ends: before a heading, and after a fold that is in no other.

    A line of a code fence may look like either; no text in a summary has a fence's marks.
    """
    at, fenced, depth = 0, False, 0
    for line in encoded.splitlines(keepends=True):
        if line.startswith(b"```"):
            fenced = not fenced
        elif not fenced and line.startswith(b"## ") and depth == 0:
            yield at
        at += len(line)
        if not fenced and line.startswith(b"<details>"):
            depth += 1
        elif not fenced and line == b"</details>\n":
            depth -= 1
            if depth == 0:
                yield at
