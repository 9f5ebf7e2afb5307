"""A document as Markdown, for a CI job summary or a comment on a pull request.

GitHub takes 65,536 characters for a comment. A section that is too long for it says how much was left out; the gravest
cells come first, and the record has everything. Of a step whose summaries, which are in the file that
GITHUB_STEP_SUMMARY names, are larger than 1 MiB it shows nothing ("upload aborted, supports content up to a size of
1024k"), so `publish` cuts the last one before a section, with a sentence that says so.

Source: GitHub's documentation, "Workflow commands for GitHub Actions", "Adding a job summary".
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import singledispatch
from pathlib import Path

from suite.records.record import Record
from suite.render import figures, report
from suite.render.commands import fits
from suite.render.document import (
    Block,
    Chart,
    Charts,
    Command,
    Document,
    Drawn,
    Facts,
    Fold,
    Grid,
    Intervals,
    Lines,
    Section,
    Span,
    Stack,
    Steps,
    Table,
    Text,
    Value,
    Verbatim,
)
from suite.render.scale import intervals

VARIABLE = "GITHUB_STEP_SUMMARY"
LIMIT_BYTES = 1024 * 1024  # of a step, and a step may run pytest more than once
MAX_BYTES = 60_000  # of the whole page, in UTF-8
NOTE_BYTES = 64  # of the sentence on what was left out, and the empty line before it
MAX_TEXT = 2_000  # characters of one text
MAX_FENCE = 20_000  # characters of one fence: the commands, the settings
MAX_STACKS = 4_000  # of what ranks said
MAX_ROWS = 12  # of the table of cells
SYMBOLS = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "❔", "NO BASELINE": "⚪", "ERROR": "❗"}
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
    """Return the summary of a run. Text from the record is escaped."""
    return write(report.document(record))


def write(document: Document) -> str:
    """Return a document as Markdown, in which everything but the first screen and the table of cells is folded."""
    return fitted(list(_first(document)), [list(_section(section)) for section in document.sections])


def fitted(first: Sequence[str], sections: Sequence[Sequence[str]]) -> str:
    """Return a page of at most `MAX_BYTES`; where it is cut, sections say how many of their lines are left out.

    Args:
        first: the lines that the page begins with; they get up to half of it.
        sections: the lines of each section. The others share alike what short ones leave.
    """
    begun = _bounded(first, MAX_BYTES // 2)
    left, kept = MAX_BYTES - _size(begun), [list[str]() for _ in sections]
    for done, at in enumerate(sorted(range(len(sections)), key=lambda at: _size(sections[at]))):
        kept[at] = _bounded(sections[at], left // (len(sections) - done))
        left -= _size(kept[at])
    return "\n".join([*begun, *itertools.chain.from_iterable(kept)]) + "\n"


def _first(document: Document) -> Iterator[str]:
    first = document.first
    verdict = f"{SYMBOLS.get(first.outcome, '')} {first.outcome}: " if first.outcome else ""
    yield f"# {first.about}{verdict}{text(first.sentence)}"
    yield ""
    yield from [text(first.summary)] if first.summary else []
    yield ""
    for note in first.notes:
        yield f"**{text(note)}**"
        yield ""
    for picture in first.pictures:
        yield from _lines(picture)
    for line in (*first.why, *(f"{name} {answer}" for name, answer in first.answers)):
        yield f"- {text(line)}"
    yield ""
    typed = [f"# {_plain(step.what)}\n{_plain(step.command)}" for step in first.steps if fits(step.command)]
    if typed:
        yield from (_fence("\n".join(typed), "sh"), "")
    if first.muted:
        yield from (f"<sub>{text(first.muted)}</sub>", "")
    if document.origin:
        yield from (f"<sub>{text(document.origin)}</sub>", "")


def _section(section: Section) -> Iterator[str]:
    """Yield a section: its first table of at most `MAX_ROWS` rows in view where it is that of the cells."""
    blocks = list(section.blocks)
    if section.name == "cells":
        yield from (f"## {text(section.heading)}", "")
        cells = next((block for block in blocks if isinstance(block, Table)), None)
        if cells is not None:
            yield from write_table(cells, MAX_ROWS)
            blocks.remove(cells)
        folded = "About each cell"
    else:
        folded = section.heading
    yield from _folded(folded, blocks)


def _folded(summary: str, blocks: Sequence[Block]) -> Iterator[str]:
    inside = [line for block in blocks for line in _lines(block)]
    if inside:
        yield from (f"<details><summary>{text(summary)}</summary>", "", *inside, "</details>", "")


@singledispatch
def _lines(block: object) -> Iterator[str]:
    raise TypeError(type(block))


@_lines.register(Chart)
@_lines.register(Charts)
def _no_picture(block: Chart | Charts) -> Iterator[str]:
    """Yield nothing: a chart's figures are in the table of cells, or in a table next to it."""
    yield from ()


@_lines.register
def _text(block: Text) -> Iterator[str]:
    yield from (text(block.text), "")


@_lines.register
def _list(block: Lines) -> Iterator[str]:
    yield from (f"- {text(line)}" for line in block.lines)
    yield from ([f"- and {block.dropped} more", ""] if block.dropped else [""])


@_lines.register
def _facts(block: Facts) -> Iterator[str]:
    for name, said in block.facts:
        yield f"- **{text(name)}** " + "<br>".join(map(text, said.split("\n")))
    yield ""


@_lines.register
def _steps(block: Steps) -> Iterator[str]:
    for step in block.steps:
        if fits(step.command):
            yield from (f"To {text(step.what)}:", "", _fence(_plain(step.command), "sh"), "")
        else:
            yield from (f"The command to {text(step.what)} is too long to show here.", "")


@_lines.register
def _verbatim(block: Verbatim) -> Iterator[str]:
    yield from (_fence(block.text[:MAX_STACKS]), "")


@_lines.register
def _grid(block: Grid) -> Iterator[str]:
    yield from (line for group in block.groups for part in group for line in _lines(part))


@_lines.register
def _fold(block: Fold) -> Iterator[str]:
    yield from _folded(block.summary, block.blocks)


@_lines.register
def _intervals(block: Intervals) -> Iterator[str]:
    """Yield the estimates with their intervals as bars of characters."""
    bars = intervals([row.span for row in block.rows], block.rules)
    width = max((len(_plain(row.name)) for row in block.rows), default=0)
    rows = (
        f"{_plain(row.name):<{width}}  {bar:<24}  {row.text} {row.outcome}".rstrip()
        for row, bar in zip(block.rows, bars, strict=True)
    )
    more = [f"and {block.left_out} more in the table of cells"] if block.left_out else []
    yield from (f"{text(block.title)}:", "", _fence("\n".join([*rows, *more])), "")


@_lines.register
def _stack(block: Stack) -> Iterator[str]:
    """Yield the parts of each bar in words."""
    for bar in block.bars:
        parts = ", ".join(piece.text for piece in bar.pieces)
        yield f"- {text(block.title)}, {text(bar.name)}: {text(bar.total)}: {text(parts)}"


@_lines.register
def _table(block: Table) -> Iterator[str]:
    yield from write_table(block)


def write_table(block: Table, most: int | None = None) -> list[str]:
    """Return a table, at most so many of its rows, with intervals as bars of characters."""
    rows = [list(map(_value, row)) for row in block.rows[:most]]
    for at in block.drawn:
        spans = [_span(row[at]) for row in block.rows[:most]]
        for row, bar in zip(rows, intervals(spans, block.rules), strict=True):
            row[at] = f"<code>{bar.replace(' ', '&nbsp;')}</code>" if bar else ""
    lines = table(list(map(_inline, block.columns)), rows)
    left_out = len(block.rows) - len(rows) + block.dropped
    return [*lines, f"*{left_out} more left out here; record.json has them.*", ""] if left_out else lines


def _value(value: Value) -> str:
    if isinstance(value, Command):
        return _inline(value.text) if fits(value.text) else "too long to show here"
    return _inline(str(value))


def _span(value: Value) -> Span | None:
    return value.spans[0] if isinstance(value, Drawn) and value.spans else None


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose fields are Markdown already, with an empty one at the end."""
    lines = ("| " + " | ".join(row) + " |" for row in rows)
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *lines, ""]


def _size(lines: Iterable[str]) -> int:
    return sum(map(_bytes, lines))


def _bytes(line: str) -> int:
    return len(line.encode(errors="replace")) + 1


def _bounded(lines: Sequence[str], most: int) -> list[str]:
    """Return the first lines that fit into so many bytes, and how many did not; folds are closed."""
    if _size(lines) <= most:
        return list(lines)
    closing = 12 * 3  # of folds, which are at most three deep
    ends = itertools.accumulate(map(_bytes, lines))
    fitting = sum(1 for end in ends if end <= most - NOTE_BYTES - closing)
    kept = lines[:fitting]
    open_ = sum(line.startswith("<details>") for line in kept) - sum(line == "</details>" for line in kept)
    dropped = sum(1 for line in lines[fitting:] if line and line != "</details>")
    return [*kept, "", f"*{dropped} more left out here; record.json has them.*", "", *["</details>"] * open_, ""]


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


def publish(summary: str, whole: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Append a summary in Markdown to the job's, where there is a job; `whole` is the file to be named where it is cut.

    Returns:
        Why the job does not have it, in a sentence; empty when it has it, or when this is no job. A file that cannot
        be written never raises, because a measurement must not fail for it.
    """
    path = environment.get(VARIABLE, "")
    if not path:
        return ""
    try:
        with open(path, "ab") as file:
            used = file.tell()
            before = b"\n" if used else b""  # a heading begins on a line of its own
            text = fit(summary, LIMIT_BYTES - used - len(before), whole)
            if not text:
                return f"{VARIABLE} {path}: {used} of {LIMIT_BYTES} bytes are used; the summary is only in {whole}"
            file.write(before + text)
    except OSError as error:
        return f"{VARIABLE} {path}: {error.strerror}; the summary is only in {whole}"
    return ""


def fit(summary: str, most_bytes: int, whole: Path) -> bytes:
    """Return as many whole sections of a summary as fit, in UTF-8; nothing where not even the first one does."""
    encoded = summary.encode(errors="replace")
    if len(encoded) <= most_bytes:
        return encoded
    note = f"**Cut here: GitHub shows {LIMIT_BYTES // 1024} KiB of a step. All of it is in {whole.name}.**\n".encode()
    fitting = [end for end in _ends(encoded) if end + len(note) <= most_bytes]
    return encoded[: fitting[-1]] + note if fitting else b""


def _ends(encoded: bytes) -> Iterator[int]:
    """Yield where a part ends: before a heading, and after a fold that is in no other.

    A line of a code fence may look like either; no text in a summary has a fence's marks.
    """
    at, fenced, depth = 0, False, 0
    for line in encoded.splitlines(keepends=True):
        if line.startswith(b"```"):
            fenced = not fenced
        elif not fenced and line.startswith(b"## ") and depth == 0:
            yield at
        at += len(line)
        if not fenced and line.startswith(b"<details>"):
            depth += 1
        elif not fenced and line == b"</details>\n":
            depth -= 1
            if depth == 0:
                yield at
