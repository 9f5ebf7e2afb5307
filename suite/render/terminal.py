"""Tables and lines for a terminal: a run, or another document, as it is shown there."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from suite.records.record import Record
from suite.render import figures, lead
from suite.render.document import Block, Chart, Document, Drawn, First, Intervals, Lines, Stack, Step, Table, Text
from suite.render.figures import legible
from suite.render.report import first
from suite.render.scale import intervals
from suite.render.sections.cells import once, table

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
MAX_NOTES = 24  # lines of a kind below the table; the record has all of them
FIRST_COLUMNS = 100  # of the first screen, but for commands, which are never cut
FIRST_ROWS = 6  # of its picture
NAME = 36  # characters of a name in a picture
BAR = 24  # characters of a drawn bar
STACK = 40  # and of a stacked one
FILLS = "█▓▒░▚▞▄▌"


def render(record: Record, width: int, *, color: bool, plain: bool = False) -> str:
    """Return the first screen, the table, the answers, and the closing lines of the trained nets, as in `Screen`."""
    screen, shown = Screen(width, color=color, plain=plain), first(record)
    screen.line("\n".join(first_screen(shown, plain=plain)))
    if record.cells:
        screen.table(table(record, once(figures.gravest_first(record.cells))).undrawn)
        if figures.is_compared(record):
            screen.line(f"compared with {figures.compared_with(record)}")
    facts = lead.facts(record)
    margin = 2 + max((len(fact.name) for fact in facts), default=0)
    for fact in facts:
        for number, line in enumerate(fact.lines):
            screen.line(f"{'' if number else fact.name:<{margin}}{line}")
        for line in fact.left_out[:MAX_NOTES]:
            screen.line(line)
        if len(fact.left_out) > MAX_NOTES:
            screen.line(f"and {len(fact.left_out) - MAX_NOTES} more; report.html has them")
    for step in shown.steps[1:]:
        screen.line(_command(step))
    typed = {step.command for step in shown.steps}
    for step in lead.red(record):
        if step.command not in typed:
            screen.line(f"{step.what}, again:\n    {step.command}")
    if any(run.shortened for run in record.accuracies):
        screen.line("* trained for less than the recipe says, because this is a CPU")
    for line in figures.missing(record.cells)[:MAX_NOTES] + figures.closing_lines(record):
        screen.line(line)
    return screen.text()


def draws(encoding: str | None) -> bool:
    """Return whether a terminal with this encoding can show what is drawn here."""
    try:
        (FILLS + "─●│┊…").encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def write(document: Document, width: int, *, color: bool = False) -> str:
    """Return the first screen of a document, and what of its sections is text or a table and not folded."""
    screen = Screen(width, color=color)
    screen.line("\n".join(first_screen(document.first)))
    for section in document.sections:
        for block in section.blocks if not section.folded else ():
            _block(screen, block)
    return screen.text()


def _block(screen: Screen, block: Block) -> None:
    if isinstance(block, Table):
        screen.table(block)
    elif isinstance(block, Text):
        screen.line(block.text)
    elif isinstance(block, Lines):
        screen.line("\n".join(block.lines))


def _command(step: Step) -> str:
    return f"To {step.what}:\n    {step.command}"


def first_screen(shown: First, *, plain: bool = False) -> Iterator[str]:
    """Yield the lines of the first screen: at most 24 of `FIRST_COLUMNS` columns, but for the command."""
    yield _cut(f"{shown.outcome}: {shown.sentence}" if shown.outcome else shown.sentence, 2)
    yield from [_cut(shown.summary)] if shown.summary else []
    yield from (_cut(note) for note in shown.notes)
    for picture in shown.pictures:
        yield ""
        if isinstance(picture, Intervals):
            yield from _intervals(picture, plain=plain)
        elif isinstance(picture, Stack):
            yield from _stack(picture, plain=plain)
        else:
            yield from _chart(picture, plain=plain)
    yield from (_cut(line) for line in shown.why[:2])
    yield ""
    margin = 2 + max((len(name) for name, _ in shown.answers), default=0)
    yield from (_cut(f"{name:<{margin}}{answer}") for name, answer in shown.answers)
    yield from (_command(step) for step in shown.steps[:1])
    if shown.muted:
        yield _cut(shown.muted)


def _cut(text: str, lines: int = 1) -> str:
    """Return one line, or a few, of the first screen."""
    line = " ".join(text.splitlines())
    most = lines * FIRST_COLUMNS
    return line if len(line) <= most else f"{line[: most - 2]} …"


def _intervals(picture: Intervals, *, plain: bool) -> Iterator[str]:
    rows = picture.rows[:FIRST_ROWS]
    yield _cut(picture.title)
    names = [_shortened(row.name) for row in rows]
    bars = intervals([row.span for row in rows], picture.rules, plain=plain)
    width = max(map(len, names), default=0)
    for name, row, bar in zip(names, rows, bars, strict=True):
        yield _cut(f"  {name:<{width}}  {bar:<{BAR}}  {row.text} {row.outcome}".rstrip())
    if left_out := len(picture.rows) - len(rows) + picture.left_out:
        yield f"  and {left_out} more below"


def _shortened(name: str) -> str:
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"


def _chart(picture: Chart, *, plain: bool) -> Iterator[str]:
    """Yield the last value of each line of a chart as a bar against the ideal's."""
    ideal = next((series for series in picture.series if series.kind == "ideal"), None)
    measured = [series for series in picture.series if series.kind == "measured" and series.points][:FIRST_ROWS]
    yield _cut(picture.title)
    width = max((len(_shortened(series.name)) for series in measured), default=0)
    for series in measured:
        last = series.points[-1]
        best = next((point.y for point in ideal.points if point.x == last.x), last.y) if ideal else last.y
        share = max(0.0, min(last.y / best if best > 0 else 0.0, 1.0))
        full, empty = ("#", ".") if plain else ("█", "░")
        bar = full * round(BAR * share) + empty * (BAR - round(BAR * share))
        value = figures.number(last.y, picture.y.form)
        where = dict(picture.x.ticks).get(last.x, figures.number(last.x, ".0f"))
        yield _cut(
            f"  {_shortened(series.name):<{width}}  {bar}  {value} of {figures.number(best, '.3g')} "
            f"on {where} {picture.x.label}"
        )


def _stack(picture: Stack, *, plain: bool) -> Iterator[str]:
    """Yield each bar, and in words the first one's pieces of at least `WORTH_SAYING` of it; fillings are the same."""
    yield _cut(picture.title)
    names = list(dict.fromkeys(piece.name for bar in picture.bars for piece in bar.pieces))
    fills = "#=+:%@*o" if plain else FILLS
    longest = max(sum(max(piece.size, 0.0) for piece in bar.pieces) for bar in picture.bars) or 1.0
    width = max(len(bar.name) for bar in picture.bars)
    for bar in picture.bars:
        drawn, level = "", 0.0
        for piece in bar.pieces:
            level += max(piece.size, 0.0)
            at = round(STACK * level / longest) if level < float("inf") else STACK
            drawn += fills[names.index(piece.name) % len(fills)] * max(0, at - len(drawn))
        yield _cut(f"  {bar.name:<{width}}  {drawn:<{STACK}}  {bar.total}")
    large = [piece for piece in picture.bars[0].pieces if abs(piece.size) >= lead.WORTH_SAYING * longest]
    parts = (f"{fills[names.index(piece.name) % len(fills)]} {piece.text}" for piece in large)
    yield from (f"  {' ' * width}  {_cut(line)}" for line in _folded(parts, FIRST_COLUMNS - width - 6))


def _folded(parts: Iterable[str], width: int) -> Iterator[str]:
    """Yield lines of so many columns that have these parts, none of which is broken."""
    line = ""
    for part in parts:
        if line and len(line) + 2 + len(part) > width:
            yield line
            line = part
        else:
            line = f"{line}, {part}" if line else part
    if line:
        yield line


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
            rich.add_column(RichText(name), justify="right" if number else "left", overflow="fold", no_wrap=whole)
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


def shown(text: str, *, styled: bool = False) -> RichText:
    """Return plain text, in which nothing steers the terminal."""
    return RichText(legible(text), style=STYLES.get(text, "") if styled else "")
