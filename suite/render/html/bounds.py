"""How much of a large record a page shows: it stays one that a browser opens at once. Pure.

A matrix of ten thousand cells is a valid record. What somebody has to look at is sorted to the front before it comes
here, the first rows are in view, more are behind a fold, and what is left is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from suite.render.html.environment import MAX_TEXT

SHOWN = 200
FOLDED = 2_000
CHARACTERS = 400_000  # of one table: hostile texts must not make up for fewer rows

Row = TypeVar("Row", bound=Sequence[Any])


@dataclass(frozen=True)
class Rows(Generic[Row]):
    """A table's rows: those in view, those behind a fold, and how many others there are."""

    shown: tuple[Row, ...]
    folded: tuple[Row, ...]
    dropped: int


def bounded(rows: Iterable[Row], total: int | None = None, *, shown: int = SHOWN, folded: int = FOLDED) -> Rows[Row]:
    """The rows of a table that a page can hold.

    Args:
        rows: sequences of texts, what matters most first.
        total: how many there are; where it is not given they are counted, which makes them all.
        shown: at most so many are in view.
        folded: at most so many behind the fold.
    """
    room, kept, rest = CHARACTERS, [], iter(rows)
    for row in islice(rest, shown + folded):
        room -= sum(min(len(text), MAX_TEXT) for text in row if isinstance(text, str))
        if room < 0:
            rest = chain([row], rest)
            break
        kept.append(row)
    dropped = sum(1 for _ in rest) if total is None else total - len(kept)
    return Rows(tuple(kept[:shown]), tuple(kept[shown:]), dropped)
