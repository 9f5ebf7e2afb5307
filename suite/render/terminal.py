"""A record as it is shown in the terminal: what a reader wants first, then the table."""

from __future__ import annotations

from suite.records.record import Record
from suite.render import figures
from suite.render.lead import is_compared, lead, no_baseline
from suite.render.screen import Screen

MAX_NOTES = 24  # on cells without an accuracy; the record has all of them


def render(record: Record, width: int, *, color: bool) -> str:
    """The first screen, the table, and what the trained runs end with.

    Args:
        width: columns of the terminal.
        color: whether to add colours; the words say the same without them.
    """
    screen = Screen(width, color=color)
    first = lead(record)
    screen.line(f"{first.title}. {len(record.sessions)} session(s) in {figures.number(record.wall_s, '.0f')} s.")
    if record.interrupted:
        screen.line("Cut short: what follows was measured before the run was interrupted.")
    margin = 2 + max((len(fact.name) for fact in first.facts), default=0)
    screen.line("")
    for fact in first.facts:
        for number, line in enumerate(fact.lines):
            screen.line(f"{'' if number else fact.name:<{margin}}{line}")
    screen.line("")
    for step in first.steps:
        screen.line(f"To {step.what}:\n    {step.command}")
    words = ("cell", "verdict")
    screen.table(figures.COLUMNS, figures.rows(record, record.cells), left=words, whole=words)
    notes = [f"compared with {figures.compared_with(record)}"] if is_compared(record) else [no_baseline(record)]
    if any(run.shortened for run in record.accuracies):
        notes.append("* trained for less than the recipe says, because this is a CPU")
    notes += figures.without_accuracy(record.cells)[:MAX_NOTES]
    for line in [*notes, *figures.closing_lines(record)]:
        screen.line(line)
    return screen.text()
