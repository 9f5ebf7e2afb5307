"""The base class of everything that is read from a file, its errors in words, and what the system's own files show.

It is in the lowest room that needs it: a record keeps the conditions of a block (`suite.room.conditions`) as they are.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError


class Part(BaseModel):
    """A frozen part of a file; unknown fields and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def content(path: Path) -> str:
    """Return the text in a file of the kernel's, without white space around it; "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def printable(text: str, most: int = 500) -> str:
    """Return the beginning of a text that any file may hold, without characters that a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text[:most])


def problem(error: ValidationError) -> str:
    """Return the first problem of a content: 'cells.0.outcome: Input should be ...'."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"
