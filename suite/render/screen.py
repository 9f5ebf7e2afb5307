"""Tables and lines for a terminal."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suite.render.figures import legible

# A narrower terminal wraps or scrolls; a table that is folded into its columns cannot be read at all.
MIN_WIDTH = 160

STYLES = {
    "PASS": "green",
    "FAIL": "bold red",
    "INCONCLUSIVE": "yellow",
    "NO BASELINE": "cyan",
    "ERROR": "bold red",
    "slower": "bold red",
    "faster": "green",
}


class Screen:
    """Collects what is printed at once.

    Args:
        width: columns of the terminal; at least `MIN_WIDTH` are used.
        color: whether to colour the words of `STYLES`; they say the same without it.
    """

    def __init__(self, width: int, *, color: bool = False) -> None:
        self._text = io.StringIO()
        self._console = Console(
            file=self._text,
            width=max(width, MIN_WIDTH),
            force_terminal=color,
            color_system="standard" if color else None,
        )

    def line(self, text: str) -> None:
        """Add text; its lines are never folded."""
        self._console.print(shown(text), soft_wrap=True)

    def table(
        self,
        columns: Iterable[str],
        rows: Iterable[Iterable[str]],
        *,
        left: Collection[str] = (),
        whole: Collection[str] = (),
    ) -> None:
        """Add a table; the columns `left` are set to the left, and the columns `whole` are folded last."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for name in columns:
            side: Literal["left", "right"] = "left" if name in left else "right"
            table.add_column(Text(name), justify=side, overflow="fold", no_wrap=name in whole)
        for row in rows:
            table.add_row(*(shown(field, STYLES) for field in row))
        self._console.print(table)

    def text(self) -> str:
        """Return everything so far."""
        return self._text.getvalue()


def shown(text: str, styles: Mapping[str, str] = {}) -> Text:
    """Return plain text, in which nothing steers the terminal."""
    return Text(legible(text), style=styles.get(text, ""))
