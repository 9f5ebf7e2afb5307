"""Tables and lines for a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from suite.render.characters import intervals
from suite.render.document import Drawn, Table
from suite.render.figures import legible

# A narrower terminal wraps or scrolls; a table that is folded into its columns cannot be read at all.
MIN_WIDTH = 160

ASCII = str.maketrans({"…": "...", "→": "->", "←": "<-", "µ": "u", "±": "+-", "“": '"', "”": '"', "·": "."})
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
        plain: whether only ASCII may be drawn.
    """

    def __init__(self, width: int, *, color: bool = False, plain: bool = False) -> None:
        self._text = io.StringIO()
        self._plain = plain
        self._console = Console(
            file=self._text,
            width=max(width, MIN_WIDTH),
            force_terminal=color,
            color_system="standard" if color else None,
        )

    def line(self, text: str) -> None:
        """Add text; its lines are never folded. A verdict that a line begins with has its colour."""
        line = shown(text)
        for outcome, style in STYLES.items():
            if text.startswith(outcome):
                line.stylize(style, 0, len(outcome))
        self._console.print(line, soft_wrap=True)

    def table(self, table: Table) -> None:
        """Add a table; the columns that are numbers are set to the right, others are folded last."""
        rich = RichTable(box=box.ASCII if self._plain else box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for name in table.columns:
            number = name in table.numbers
            whole = not number and name not in table.long
            rich.add_column(Text(name), justify="right" if number else "left", overflow="fold", no_wrap=whole)
        bars = {at: self._bars(table, at) for at in table.drawn}
        for row in table.rows:
            fields = (next(bars[at]) if at in bars else str(value) for at, value in enumerate(row))
            rich.add_row(*(shown(field, styled=True) for field in fields))
        self._console.print(rich)
        if table.dropped:
            self.line(f"and {table.dropped} more; record.json has them")

    def _bars(self, table: Table, at: int) -> Iterator[str]:
        spans = [value.spans[0] if isinstance(value := row[at], Drawn) and value.spans else None for row in table.rows]
        return intervals(spans, table.rules, plain=self._plain)

    def text(self) -> str:
        """Return everything so far."""
        text = self._text.getvalue()
        return text.translate(ASCII) if self._plain else text


def shown(text: str, *, styled: bool = False) -> Text:
    """Return plain text, in which nothing steers the terminal."""
    return Text(legible(text), style=STYLES.get(text, "") if styled else "")
