"""Where a step's time went: a waterfall for each cell, of candidate and base side by side where there are two."""

from __future__ import annotations

from collections.abc import Sequence

from suite.records.record import CellRecord, Record, WaterfallRecord
from suite.render import figures, lead
from suite.render.document import (
    Block,
    Drawn,
    Facts,
    Fold,
    Grid,
    Lines,
    Piece,
    Rules,
    Section,
    Span,
    Stack,
    StackBar,
    Table,
    Text,
    Value,
)
from suite.verdict.diagnose import CAUSES, bar_name
from suite.verdict.metrics import Interval

MAX_WATERFALLS = 24
MAX_NAMES = 8  # of cells without a waterfall
UNITS = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))


def lost_time(record: Record) -> Section:
    """Return the waterfalls, the gravest cells first, the sentences of other cells, and why cells have none."""
    cells = figures.gravest_first([cell for cell in record.cells if cell.waterfalls])
    unexplained = [cell for cell in record.cells if not cell.waterfalls and cell.why("waterfall")]
    reasons = figures.labels((cell.why("waterfall"), cell) for cell in unexplained)
    blocks = lead.told(record, "lost_time")
    if cells:
        blocks.append(Text(_EXPLAINED, muted=True))
        blocks.append(Grid(tuple(map(waterfall, cells[:MAX_WATERFALLS]))))
        if others := [(cell.label, cell.waterfalls[0].sentence) for cell in cells[MAX_WATERFALLS:]]:
            blocks.append(Table.of("Other cells", ("cell", "largest part"), others))
        blocks.append(Fold("What each part means", (Facts(tuple(CAUSES.items())),)))
    if reasons:
        without = tuple(f"{figures.some(ids, MAX_NAMES)}: {reason}" for reason, ids in reasons.items())
        blocks.append(Fold("Cells that were not taken apart", (Lines(without[:MAX_NAMES], len(without[MAX_NAMES:])),)))
    return Section("lost_time", "Where the time went", tuple(blocks))


_EXPLAINED = (
    "Each cell's step against the ideal: one device's step, divided by k in strong scaling. The parts add up to what "
    "was measured. The exchange is the part of it that is not hidden behind the backward pass."
)


def waterfall(cell: CellRecord) -> tuple[Block, ...]:
    """Return the picture, the sentences and the table of one cell's waterfalls."""
    sides = cell.waterfalls
    factor, unit = _unit(sides)
    origin = _origin(sides)
    spans = [_spans(side, origin) for side in sides]
    names = list(dict.fromkeys(name for side in spans for name in side))
    names.sort(key=lambda name: name == "measured")  # the total closes the table, also where a side has more causes
    caption = (
        f"{cell.label}: {unit} a step, with 95 % intervals. The bars of ideal and measured begin at the line, "
        f"{figures.number(origin * factor, '.3g')} {unit}; a dashed bar saves time"
    )
    if len(sides) > 1:
        caption += f"; {sides[0].side} above {sides[1].side}"
    rows = [_row(name, spans, sides, factor) for name in names]
    numbers = [side.side for side in sides] + ["longer"]
    columns = ("part", f"{unit} →", *numbers[: len(sides)], "longer")
    notes = tuple(dict.fromkeys(note for side in sides for note in side.notes))
    sentences = [side.sentence if len(sides) == 1 else f"{side.side}: {side.sentence}" for side in sides]
    return (
        stack(cell),
        *(Text(sentence) for sentence in sentences),
        Fold(
            f"The parts of {cell.label} with their intervals",
            (
                Table.of(f"{caption}.", columns, rows, numbers=numbers, rules=Rules((origin,))),
                *([Lines(notes)] if notes else []),
            ),
        ),
    )


def stack(cell: CellRecord) -> Stack:
    """Return the steps of a cell's sides as stacked bars: the ideal, and what comes on top of it."""
    factor, unit = _unit(cell.waterfalls)
    form = ".2f" if factor * cell.waterfalls[0].measured_s.estimate < 10 else ".1f"
    bars = []
    for side in cell.waterfalls:
        pieces = [("ideal", side.ideal_s), *((bar_name(bar.causes), bar.step_s) for bar in side.bars)]
        bars.append(
            StackBar(
                side.side,
                f"{figures.interval(side.measured_s, '.3g', factor=factor, bounds=False)} {unit} a step",
                tuple(
                    Piece(name, value.estimate * factor, f"{name} {_text(value, side, factor, form, unit)}")
                    for name, value in pieces
                ),
            )
        )
    return Stack(f"Where the time of {cell.label} went", tuple(bars))


def _unit(sides: Sequence[WaterfallRecord]) -> tuple[float, str]:
    """Return the factor from seconds to the unit in which the longest step has a whole part, and the unit."""
    longest = max(abs(side.measured_s.estimate) for side in sides)
    return next((choice for choice in UNITS if longest * choice[0] >= 1), UNITS[-1])


def _row(
    name: str, spans: Sequence[dict[str, tuple[Interval, Span]]], sides: Sequence[WaterfallRecord], factor: float
) -> tuple[Value, ...]:
    values = [side[name][0] if name in side else None for side in spans]
    drawn = Drawn(tuple(side[name][1] if name in side else None for side in spans))
    texts = [_text(value, side, factor) for value, side in zip(values, sides, strict=True)]
    return (name, drawn, *texts, _change(values, factor))


def _origin(sides: Sequence[WaterfallRecord]) -> float:
    """Return the seconds at which bars begin: 0, or just below the ideal where the parts would be too small to see."""
    totals = [total.estimate for side in sides for total in (side.ideal_s, side.measured_s)]
    lowest, highest = min(totals), max(totals)
    origin = lowest - (highest - lowest) / 2
    return origin if origin > highest / 3 else 0.0


def _spans(side: WaterfallRecord, origin: float) -> dict[str, tuple[Interval, Span]]:
    """Return every part with its bar, which begins where the one before ended."""
    level = side.ideal_s.estimate
    spans = {"ideal": (side.ideal_s, _total(side.ideal_s, origin))}
    for bar in side.bars:
        value = bar.step_s
        low, high = (None if bound is None else level + bound for bound in (value.low, value.high))
        style = "saves" if value.estimate < 0 else "bar"
        spans[bar_name(bar.causes)] = (value, Span(level, level + value.estimate, low, high, style))
        level += value.estimate
    spans["measured"] = (side.measured_s, _total(side.measured_s, origin))
    return spans


def _total(value: Interval, origin: float) -> Span:
    return Span(origin, value.estimate, value.low, value.high, "total")


def _bounds(value: Interval | None) -> tuple[float, float] | None:
    return None if value is None or value.low is None or value.high is None else (value.low, value.high)


def _text(value: Interval | None, side: WaterfallRecord, factor: float, form: str = ".2f", unit: str = "") -> str:
    """Return a part; "not known" where its interval reaches further to a side than the step is long."""
    ends = _bounds(value)
    if ends is not None and ends[1] - ends[0] > 2 * abs(side.measured_s.estimate):
        return "not known"
    return f"{figures.interval(value, form, factor=factor)} {unit}".rstrip()


def _change(values: Sequence[Interval | None], factor: float) -> str:
    """Return how much longer the candidate takes than the base; empty where the intervals do not show a difference."""
    if len(values) < 2 or values[0] is None or values[1] is None:
        return ""
    own, base = (_bounds(value) for value in values)
    if own is None or base is None or (own[0] <= base[1] and base[0] <= own[1]):
        return ""
    return figures.number((values[0].estimate - values[1].estimate) * factor, "+.2f")
