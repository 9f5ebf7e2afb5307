"""A record as a table in the terminal."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suite.record import Record
from suite.render import figures

# A narrower terminal, or a log, wraps or scrolls: a table folded into its columns could not be read at all.
MIN_WIDTH = 160
MAX_SENTENCES = 24  # on where the time went; the report has all of them

_STYLE = {"PASS": "green", "FAIL": "bold red", "INCONCLUSIVE": "yellow", "NO BASELINE": "cyan", "ERROR": "bold red"}


def render(record: Record, width: int, *, color: bool) -> str:
    """The table, the reasons of everything that is not a PASS, where the time went, and what the trained runs end with.

    Args:
        width: columns of the terminal.
        color: whether to add colours; the words say the same without them.
    """
    console = Console(
        file=io.StringIO(),
        width=max(width, MIN_WIDTH),
        force_terminal=color,
        color_system="standard" if color else None,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for column in figures.COLUMNS:
        left = column in ("cell", "verdict")
        table.add_column(column, justify="left" if left else "right", overflow="fold", no_wrap=left)
    for *texts, outcome in figures.rows(record, record.cells):
        table.add_row(*map(_text, texts), Text(outcome, style=_STYLE[outcome]))
    console.print(table)
    notes = [
        f"compared with {figures.compared_with(record)}; {len(record.sessions)} session(s) in "
        f"{figures.number(record.wall_s, '.0f')} s"
    ]
    if any(run.shortened for run in record.accuracies):
        notes.append("* trained for less than the recipe says, because this is a CPU")
    reasons = dict.fromkeys((cell.outcome.value, cell.reason) for cell in record.cells if cell.outcome != "PASS")
    notes += [f"{outcome}: {reason}" for outcome, reason in reasons]
    lost = [f"{cell.id}: {found.sentence}" for cell in record.cells for found in cell.waterfalls]
    notes += lost[:MAX_SENTENCES]
    for line in [*notes, *figures.closing_lines(record)]:
        console.print(_text(line), soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _text(value: str) -> Text:
    """Plain text: what would steer a terminal, or turn the direction of its lines, is replaced."""
    return Text("".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in value))
