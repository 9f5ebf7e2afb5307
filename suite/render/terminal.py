"""A record as a table in the terminal."""

from __future__ import annotations

from suite.record import Record
from suite.render import figures
from suite.render.screen import Screen

MAX_SENTENCES = 24  # on where the time went; the report has all of them


def render(record: Record, width: int, *, color: bool) -> str:
    """The table, the reasons of everything that is not a PASS, where the time went, and what the trained runs end with.

    Args:
        width: columns of the terminal.
        color: whether to add colours; the words say the same without them.
    """
    screen = Screen(width, color=color)
    words = ("cell", "verdict")
    screen.table(figures.COLUMNS, figures.rows(record, record.cells), left=words, whole=words)
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
        screen.line(line)
    return screen.text()
