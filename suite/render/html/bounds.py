"""How much of a large record a page shows, so that a browser opens it at once. Pure.

A matrix of ten thousand cells is a valid record. Callers sort what matters most to the front; the first rows are in
view, more are behind a fold, and the others are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from markupsafe import Markup

from suite.render.html.environment import MAX_TEXT

SHOWN = 200
FOLDED = 2_000
CHARACTERS = 400_000  # of one table: long texts must not make up for fewer rows


class Rows(NamedTuple):
    """The rows of a table: those in view, those behind a fold, and how many others there are."""

    shown: list[Sequence[str]]
    folded: list[Sequence[str]]
    dropped: int


def bounded(rows: Iterable[Sequence[str]], total: int, *, shown: int = SHOWN, folded: int = FOLDED) -> Rows:
    """Return the rows of a table that a page can hold.

    Args:
        rows: the texts of each, what matters most first; no more are made than are kept.
        total: how many there are.
        shown: at most so many are in view.
        folded: at most so many behind the fold.
    """
    left, kept = CHARACTERS, []
    for row in islice(rows, shown + folded):
        left -= sum(min(len(text), MAX_TEXT) for text in row if not isinstance(text, Markup))
        if left < 0:
            break
        kept.append(row)
    return Rows(kept[:shown], kept[shown:], total - len(kept))
