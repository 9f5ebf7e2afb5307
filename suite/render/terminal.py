"""A record as it is shown in the terminal: the first screen, then the table."""

from __future__ import annotations

from suite.records.record import Record
from suite.render import figures
from suite.render.lead import facts, no_baseline, red, steps, title
from suite.render.screen import Screen

MAX_NOTES = 24  # lines of a kind below the table; the record has all of them


def render(record: Record, width: int, *, color: bool) -> str:
    """Return the first screen, the table, and the closing lines of the trained nets, for so many columns."""
    screen = Screen(width, color=color)
    shown = facts(record)
    screen.line(f"{title(record)}. {figures.took(record)}.")
    if record.interrupted:
        screen.line(figures.cut_short(record))
    margin = 2 + max((len(fact.name) for fact in shown), default=0)
    screen.line("")
    for fact in shown:
        for number, line in enumerate(fact.lines):
            screen.line(f"{'' if number else fact.name:<{margin}}{line}")
    screen.line("")
    for step in steps(record):
        screen.line(f"To {step.what}:\n    {step.command}")
    if record.cells:
        columns = figures.columns(record)
        words = [column for column in ("cell", "verdict") if column in columns]
        screen.table(columns, figures.rows(record, record.cells), left=words, whole=words)
        screen.line(
            f"compared with {figures.compared_with(record)}" if figures.is_compared(record) else no_baseline(record)
        )
    for fact in shown:
        for line in fact.left_out[:MAX_NOTES]:
            screen.line(line)
        if len(fact.left_out) > MAX_NOTES:
            screen.line(f"and {len(fact.left_out) - MAX_NOTES} more; report.html has them")
    for step in red(record):
        screen.line(f"{step.what}, again:\n    {step.command}")
    if any(run.shortened for run in record.accuracies):
        screen.line("* trained for less than the recipe says, because this is a CPU")
    for line in figures.missing(record.cells)[:MAX_NOTES] + figures.closing_lines(record):
        screen.line(line)
    return screen.text()
