"""A page as data: a first screen and sections of facts, lists, tables, charts and commands. Pure.

Sections are made once from a record (`suite.render.sections`), and three writers write the same ones: `terminal`,
`markdown` and `html`. A writer decides how a part looks and how much of it there is space for, never what it says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal, NamedTuple

from suite.verdict.metrics import Interval

MAX_TEXT = 4_000  # characters of one text in a page; a stack of every rank is among the longest
SHOWN = 200  # rows of a table in view
FOLDED = 2_000  # and behind a fold
SENTENCE = 60  # characters: what is longer may be folded
CHARACTERS = 400_000  # of one table: long texts must not make up for fewer rows
MAX_SERIES = 12  # of a chart: more cannot be told apart
NONE = "-"  # a figure that is not there


class Badge(NamedTuple):
    """An outcome: a word that the pages colour, with its symbol."""

    outcome: str
    counts: bool = True  # whether it decides, or is only shown

    def __str__(self) -> str:
        return self.outcome + ("" if self.counts else ", shown only")


class Link(NamedTuple):
    """A text that leads to an address: "#" and the name of a part of the same page, or a file."""

    text: str
    address: str

    def __str__(self) -> str:
        return self.text


class Command(NamedTuple):
    """A command to paste, which is never cut."""

    text: str

    def __str__(self) -> str:
        return self.text


class Span(NamedTuple):
    """A bar from `start` to `end`, and the interval of its free end; without a length it is a dot.

    `style` says what it is: "bar", "fail", "total" (of the whole step) or "saves" (time).
    """

    start: float
    end: float
    low: float | None = None
    high: float | None = None
    style: str = "bar"

    @classmethod
    def dot(cls, value: Interval | None, style: str = "bar") -> Span | None:
        """Return an estimate and its interval as a dot; None without one."""
        return None if value is None else cls(value.estimate, value.estimate, value.low, value.high, style)


class Drawn(NamedTuple):
    """Spans of a table's cell, one below the other; None is an empty one."""

    spans: tuple[Span | None, ...]

    def __str__(self) -> str:
        return ""


Value = str | Badge | Link | Command | Drawn


@dataclass(frozen=True)
class Rules:
    """The axis of the drawn column of a table, with a line across every row at each of these values."""

    at: tuple[float, ...] = ()
    log: bool = False


@dataclass(frozen=True)
class Table:
    """A table; `Table.of` makes one that a page can hold. The first column names the row."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]  # what matters most first, the first `SHOWN` of them in view
    numbers: frozenset[str] = frozenset()  # columns that are set to the right
    rules: Rules = field(default_factory=Rules)
    dropped: int = 0  # how many further rows there are

    @classmethod
    def of(
        cls,
        caption: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Value]],
        *,
        numbers: Collection[str] = (),
        rules: Rules | None = None,
        total: int | None = None,
    ) -> Table:
        """Return a table of the first rows, as many as a page can hold, without columns that are empty in all of them.

        No more rows are made than are kept; `total` is how many there are, where `rows` is no sequence.
        """
        if total is None:
            rows = list(rows)
            total = len(rows)
        left, kept = CHARACTERS, list[tuple[Value, ...]]()
        for row in islice(rows, SHOWN + FOLDED):
            left -= sum(min(len(str(value)), MAX_TEXT) for value in row)
            if left < 0:
                break
            kept.append(tuple(row))
        used = [at for at in range(len(columns)) if at == 0 or any(_says(row[at]) for row in kept)]
        return cls(
            caption,
            tuple(columns[at] for at in used),
            tuple(tuple(row[at] for at in used) for row in kept),
            frozenset(numbers),
            rules or Rules(),
            total - len(kept),
        )

    @property
    def long(self) -> frozenset[str]:
        """The columns that have sentences."""
        return frozenset(
            name for at, name in enumerate(self.columns) if any(len(str(row[at])) > SENTENCE for row in self.rows)
        )

    @property
    def undrawn(self) -> Table:
        """The same without drawn columns."""
        kept = [at for at in range(len(self.columns)) if at not in self.drawn]
        rows = tuple(tuple(row[at] for at in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in kept), rows=rows)

    @property
    def drawn(self) -> list[int]:
        """The places of columns with drawn values."""
        return [at for at in range(len(self.columns)) if any(isinstance(row[at], Drawn) for row in self.rows)]


def _says(value: Value) -> bool:
    return any(value.spans) if isinstance(value, Drawn) else str(value) not in ("", NONE)


class Point(NamedTuple):
    """One value of a chart, with its interval where there is one; `note` is shown with it."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""

    @classmethod
    def of(cls, x: float, value: Interval, note: str = "") -> Point:
        """Return an estimate as a point."""
        return cls(x, value.estimate, value.low, value.high, note)


@dataclass(frozen=True)
class Series:
    """Points that belong together, drawn in the order given."""

    name: str
    points: tuple[Point, ...]
    kind: Literal["measured", "ideal", "base"] = "measured"  # the ideal has no markers, a base hollow ones and dots
    like: str = ""  # of a "base", the name of the series whose colour and marker it shares; grey without one
    joined: bool = True  # whether a line connects the points


class Mark(NamedTuple):
    """A vertical line, and what it says."""

    x: float
    label: str


@dataclass(frozen=True)
class Axis:
    """What is along an edge: round numbers where there are no `ticks`, or more than a chart shows."""

    label: str  # with the unit
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()  # values and their wording
    include: tuple[float, ...] = ()  # values that must be in view
    form: str = ".4g"  # of the numbers in the table


@dataclass(frozen=True)
class Chart:
    """A picture, and its content in words for those who do not see it."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    description: str = ""
    interval: str = "95 % interval"  # what the bounds of its points are
    groups: tuple[str, ...] = ()  # the values of the filters of `Charts` that it belongs to


@dataclass(frozen=True)
class Charts:
    """Charts next to each other, `paired` ones in two columns; with `filters` a reader can show some of them alone."""

    charts: tuple[Chart, ...]
    paired: bool = False
    filters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """Groups of parts next to each other, where there is space for it."""

    groups: tuple[tuple[Block, ...], ...]


class Piece(NamedTuple):
    """A part of a stacked bar: what it is, and its size in the bar's unit; a negative one saves."""

    name: str
    size: float
    text: str


class StackBar(NamedTuple):
    """A bar of pieces that add up to `total`: the first is the ideal, the others are what comes on top of it."""

    name: str
    total: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Stack:
    """Stacked bars on one axis, one for each side of a comparison."""

    title: str
    bars: tuple[StackBar, ...]


class Row(NamedTuple):
    """A line of an interval picture; without a value `text` says why."""

    name: str
    span: Span | None
    text: str
    outcome: str = ""


@dataclass(frozen=True)
class Intervals:
    """Estimates with their intervals below one another, on one axis with lines at `rules`."""

    title: str
    rows: tuple[Row, ...]
    rules: Rules
    left_out: int = 0


@dataclass(frozen=True)
class Text:
    """A paragraph; a muted one explains."""

    text: str
    muted: bool = False


@dataclass(frozen=True)
class Lines:
    """A list of sentences, with what is left out."""

    lines: tuple[str, ...]
    dropped: int = 0


@dataclass(frozen=True)
class Facts:
    """Names, and what is known of each."""

    facts: tuple[tuple[str, str], ...]


class Step(NamedTuple):
    """A command, and what it is for."""

    what: str
    command: str


@dataclass(frozen=True)
class Steps:
    """Commands to paste."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Verbatim:
    """Text as it is."""

    text: str


@dataclass(frozen=True)
class Fold:
    """Parts behind a line that opens them; an `anchor` can be linked to, and opens them."""

    summary: str
    blocks: tuple[Block, ...]
    open: bool = False
    anchor: str = ""


Block = Text | Lines | Facts | Steps | Verbatim | Table | Charts | Grid | Stack | Intervals | Fold


@dataclass(frozen=True)
class Section:
    """Parts under a heading; a `folded` one is closed unless it is `open`."""

    name: str
    heading: str
    blocks: tuple[Block, ...]
    folded: bool = False
    open: bool = False


@dataclass(frozen=True)
class First:
    """The first screen."""

    outcome: str  # the gravest; empty where nothing was compared
    sentence: str  # the answer
    summary: str = ""  # the cells by outcome, and how long it took
    notes: tuple[str, ...] = ()  # what a reader must know before anything else; mostly none
    pictures: tuple[Chart | Intervals | Stack, ...] = ()  # of what was asked, and of where the time went
    why: tuple[str, ...] = ()  # what the second picture says, in words
    answers: tuple[tuple[str, str], ...] = ()  # to the questions "right?" and "how sure?"
    steps: tuple[Step, ...] = ()  # what to type next, the most useful first
    muted: str = ""  # what is not known, in one line
    about: str = ""  # what a heading begins with on a page that has others, such as "Scaling: "


@dataclass(frozen=True)
class Document:
    """A page: its first screen, its sections in reading order, and a line about where it comes from."""

    title: str
    first: First
    sections: tuple[Section, ...]
    origin: str = ""
