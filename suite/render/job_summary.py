"""A run's summary on the page of its GitHub Actions job: appended to the file that GITHUB_STEP_SUMMARY names.

GitHub shows nothing at all of a step whose file is larger than 1 MiB ("upload aborted, supports content up to a size of
1024k"), so a longer summary is cut at a line where no block is open, with a sentence that says so.

Source: GitHub's documentation, "Workflow commands for GitHub Actions", "Adding a job summary".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

VARIABLE = "GITHUB_STEP_SUMMARY"
LIMIT_BYTES = 1024 * 1024  # of a step, and a step may run pytest more than once

_TABLE_RULE = re.compile(r"\|[ :|-]+\|?")


def publish(summary: str, whole: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Append a summary to the job's, where there is a job.

    Args:
        summary: Markdown.
        whole: where all of it lies, for who reads one that was cut.
        environment: of this process.

    Returns:
        Why the job goes without it, in a sentence; empty when it has it, or when this is no job. Never raises for a
        file that cannot be written: a measurement does not fail for its announcement.
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
                return f"{VARIABLE} {path}: {used} of {LIMIT_BYTES} bytes are used; the summary is in {whole} alone"
            file.write(before + text)
    except OSError as error:
        return f"{VARIABLE} {path}: {error.strerror}; the summary is in {whole} alone"
    return ""


def fit(summary: str, room_bytes: int, whole: Path) -> bytes:
    """As much of a summary as there is room for, in UTF-8; nothing where not even its first lines fit.

    Code fences and folds are kept whole or left out, and a table's heading stays with the rule below it.
    """
    encoded = summary.encode(errors="replace")
    if len(encoded) <= room_bytes:
        return encoded
    note = f"\n**Cut here: GitHub shows {LIMIT_BYTES // 1024} KiB of a step. All of it is in {whole.name}.**\n"
    left = room_bytes - len(note.encode())
    kept = max((end for end in _ends(encoded) if end <= left), default=0)
    return encoded[:kept] + note.encode() if kept else b""


def _ends(summary: bytes) -> Iterator[int]:
    """Bytes up to each line after which nothing is open."""
    fence, folds, end = False, 0, 0
    lines = summary.splitlines(keepends=True)
    for line, below in zip(lines, [*lines[1:], b""], strict=True):
        end += len(line)
        if line.startswith(b"```"):
            fence = not fence
        elif not fence:
            folds += line.count(b"<details") - line.count(b"</details")
        if not fence and folds == 0 and not _TABLE_RULE.fullmatch(below.decode().strip()):
            yield end
