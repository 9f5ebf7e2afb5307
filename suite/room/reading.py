"""What files of other programs say, as text. Workers read some of them, so only the standard library is needed."""

from pathlib import Path


def content(path: Path) -> str:
    """Return the text in a file of the kernel's, without white space around it; "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def printable(text: str, most: int = 500) -> str:
    """Return the beginning of a text that any file may hold, without characters that a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text[:most])
