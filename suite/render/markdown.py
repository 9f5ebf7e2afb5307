"""A record as `summary.md`: fits a CI job summary or a comment on a pull request.

GitHub takes 65,536 characters for a comment, and 1 MiB for the summary of a step. A section that is too long for the
former says how much was left out; the gravest cells come first then, and the record has everything.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from suite.records.record import CellRecord, Record
from suite.render import figures
from suite.render.commands import fits
from suite.render.lead import MOST, cautions, facts, no_baseline, red, steps, title, verdicts
from suite.render.stopping import stops

MAX_CHARACTERS = 65_000  # of the whole page
NOTE_CHARACTERS = 64  # of the sentence on what was left out, and the empty line before it
MAX_TEXT = 2_000  # characters of one text
MAX_FENCE = 20_000  # characters of one fence: the commands, the settings
MAX_STACKS = 4_000  # of one cell
_MARKS = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\\": "&#92;", "|": "\\|", "`": "\\`", "*": "\\*", "~": "\\~", "$": "\\$"}
)
# A link or an image needs what follows its brackets. A space of no width ends a mention, an address or a reference.
_ACTIVE = (
    (re.compile(r"\](?=[(\[:])"), r"\\]"),
    (re.compile(r"(?<![^\W_])_|_(?![^\W_])"), r"\\_"),
    (re.compile(r"@(?=\w)|(?<!&)#(?=\d)|:(?=//)|\bwww(?=\.)", re.IGNORECASE), r"\g<0>&#8203;"),
)
# What begins a heading, an item of a list, a rule, or underlines a heading.
_BEGINS = re.compile(r"^(\d+(?=[.)](?:\s|$))|(?=(?:#+|[-+])(?:\s|$)|[-=]+\s*$))")


def render(record: Record) -> str:
    """Return the summary. Text from the record is escaped."""
    first = [*_heading(record), *_lead(record)]
    sections = _sections(record, record.cells)
    if sum(map(_size, (first, *sections))) > MAX_CHARACTERS:
        sections = _sections(record, figures.gravest_first(record.cells))
    return fitted(first, sections)


def fitted(first: Sequence[str], sections: Sequence[Sequence[str]]) -> str:
    """Return a page of at most `MAX_CHARACTERS`; where it is cut, sections say how many of their lines are left out.

    Args:
        first: the lines that the page begins with; they get up to half of it.
        sections: the lines of each section. The others share alike what short ones leave.
    """
    begun = _bounded(first, MAX_CHARACTERS // 2)
    left, kept = MAX_CHARACTERS - _size(begun), [list[str]() for _ in sections]
    for done, at in enumerate(sorted(range(len(sections)), key=lambda at: _size(sections[at]))):
        kept[at] = _bounded(sections[at], left // (len(sections) - done))
        left -= _size(kept[at])
    return "\n".join([*begun, *itertools.chain.from_iterable(kept)]) + "\n"


def _sections(record: Record, cells: Sequence[CellRecord]) -> list[list[str]]:
    return [
        _cells(record, cells),
        _about_cells(cells),
        _red(record),
        _verdicts(record),
        _cautions(record),
        _lost_time(cells),
        _list("At which k to stop", [f"{stop.title}: {stop.sentence}" for stop in stops(record)]),
        _rules(cells),
        _counted(cells),
        _not_counted(cells),
        _details(cells),
        _accuracy(record),
        _closing(record),
        _machine(record),
    ]


def _heading(record: Record) -> list[str]:
    data = [
        f"{text(name)}: {text(data)} ({figures.number(record.epoch_samples.get(name, 0), ',')} samples)"
        for name, data in sorted(record.datasets.items())[:20]
    ]
    timed = f" Timed on {', '.join(data)}." if data else ""
    against = text(figures.compared_with(record))
    cut = [f"**{text(figures.cut_short(record))}**", ""]
    return [
        f"# Scaling: {text(title(record))}",
        "",
        *(cut if record.interrupted else []),
        f"Commit {text(figures.commit(record.environment))}, compared with {against}, tolerance "
        f"{figures.number(record.tolerance, '.1%')}, {figures.took(record)}.{timed}",
        "",
    ]


def _lead(record: Record) -> list[str]:
    lines = []
    for fact in facts(record):
        lines += [f"- **{fact.name}** {text(fact.lines[0])}", *(f"  <br>{text(line)}" for line in fact.lines[1:])]
    typed = "\n".join(f"# {_plain(step.what)}\n{_plain(step.command)}" for step in steps(record))
    return [*lines, "", *([_fence(typed, "sh"), ""] if typed else [])]


def _cells(record: Record, cells: Sequence[CellRecord]) -> list[str]:
    return ["## Cells", "", *table(figures.columns(record), figures.rows(record, cells))] if cells else []


def _about_cells(cells: Sequence[CellRecord]) -> list[str]:
    if not cells:
        return []
    note = (
        "Square brackets are 95 % intervals over sessions (fresh processes). Efficiency is R_k / (k R_1) of the "
        "same trainer; the speed-up is over the plain trainer on one device."
    )
    return [note, "", *(f"- {text(line)}" for line in figures.missing(cells)), ""]


def _red(record: Record) -> list[str]:
    """Return a command for each cell that failed, each in a fence of its own, so that none is cut."""
    blocks = [
        f"{text(step.what)}:\n\n{_fence(_plain(step.command), 'sh')}\n"
        if fits(step.command)
        else f"{text(step.what)}: too long to show here\n"
        for step in red(record)
    ]
    return ["## What failed, one by one", "", *blocks] if blocks else []


def _verdicts(record: Record) -> list[str]:
    """Return why there are no verdicts, or every reason with its cells where the lead had no space for all."""
    if not figures.is_compared(record):
        return [text(no_baseline(record)), ""]
    lines = verdicts(record)
    return _list("Verdicts", lines if len(lines) > MOST else [])


def _cautions(record: Record) -> list[str]:
    """Return all warnings where the lead had no space for them."""
    lines = cautions(record)
    return _list("Warnings", lines if len(lines) > MOST else [])


def _lost_time(cells: Sequence[CellRecord]) -> list[str]:
    lines = []
    for cell in cells:
        for fall in cell.waterfalls:
            lines.append(f"{cell.label}{'' if fall.side == 'candidate' else ' (base)'}: {fall.sentence}")
    return _list("Where the time went", lines)


def _rules(cells: Sequence[CellRecord]) -> list[str]:
    rows = [
        (cell.label, rule.rule, rule.against, rule.outcome.value + ("" if rule.counts else ", shown only"), rule.reason)
        for cell in cells
        for rule in cell.checks
    ]
    columns = ("cell", "rule", "against", "outcome", "why")
    return ["## What each rule found", "", *table(columns, rows)] if rows else []


def _counted(cells: Sequence[CellRecord]) -> list[str]:
    columns, rows = figures.counted(cells)
    return ["## What one step does", "", *table(columns, rows)] if rows else []


def _not_counted(cells: Sequence[CellRecord]) -> list[str]:
    notes = figures.labels((why, cell) for cell in cells if (why := cell.why("counters")))
    reasons = [f"{figures.some(ids, MOST)}: {reason}" for reason, ids in notes.items()]
    return _list("Steps that were not counted", reasons)


def _details(cells: Sequence[CellRecord]) -> list[str]:
    return [
        f"<details><summary>{text(cell.label)}</summary>\n\n{_fence(cell.details[:MAX_STACKS])}\n\n</details>\n"
        for cell in cells
        if cell.details
    ]


def _accuracy(record: Record) -> list[str]:
    if not record.accuracies:
        return []
    return ["## Accuracy by epoch", "", *table(figures.NET_COLUMNS, figures.nets(record))]


def _closing(record: Record) -> list[str]:
    closing = "\n".join(figures.closing_lines(record))
    return [_fence(closing), ""] if closing else []


def _machine(record: Record) -> list[str]:
    known = "; ".join(fact for _, fact in figures.facts(record.machine, record.environment))
    return [
        "## Machine",
        "",
        f"{text(record.machine.key)}: {text(known)}.",
        "",
        figures.disturbances(record),
        "",
        *(f"- Room check: {text(neighbour)}" for neighbour in record.neighbours),
        *([""] if record.neighbours else []),
        _fence("\n".join(map(_plain, (*record.settings, *record.plan)))),
    ]


def _list(heading: str, lines: Sequence[str]) -> list[str]:
    """Return a section of bullet points; nothing where there are no lines."""
    return [f"## {heading}", "", *(f"- {text(line)}" for line in lines), ""] if lines else []


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with an empty one at the end. The rows are escaped, the names of columns are not."""
    lines = ("| " + " | ".join(map(_inline, row)) + " |" for row in rows)
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *lines, ""]


def _size(lines: Iterable[str]) -> int:
    return sum(len(line) + 1 for line in lines)


def _bounded(lines: Sequence[str], most: int) -> list[str]:
    """Return the first lines that fit into so many characters, and how many did not."""
    if _size(lines) <= most:
        return list(lines)
    ends = itertools.accumulate(len(line) + 1 for line in lines)
    fitting = sum(1 for end in ends if end <= most - NOTE_CHARACTERS)
    dropped = sum(1 for line in lines[fitting:] if line)
    return [*lines[:fitting], "", f"*{dropped} more left out here; record.json has them.*", ""]


def _fence(text: str, language: str = "") -> str:
    return f"```{language}\n" + figures.legible(text[:MAX_FENCE]).replace("`", "'") + "\n```"


def text(value: str) -> str:
    """Return a line of plain text in which nothing is Markdown or HTML, and nothing a link or a mention on GitHub."""
    line = _inline(value).lstrip()  # four spaces begin a block of code
    return _BEGINS.sub(r"\g<1>\\", line, count=1)


def _inline(value: str) -> str:
    """Return the same for the middle of a line."""
    value = _plain(value).translate(_MARKS)
    for pattern, replacement in _ACTIVE:
        value = pattern.sub(replacement, value)
    return value


def _plain(value: str) -> str:
    """Return one line of limited length."""
    cut = value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]} …"
    return figures.legible(" ".join(cut.splitlines()))
