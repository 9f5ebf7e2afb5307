"""Where a step's time went: a waterfall for each cell, of candidate and base side by side where there are two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suite.records.baselines import Baseline
from suite.records.record import CellRecord, IntervalRecord, Record, WaterfallRecord
from suite.render import figures
from suite.render.html.bounds import Rows, bounded
from suite.render.html.chart import Span, Strip, strips
from suite.verdict.diagnose import CAUSES

MAX_WATERFALLS = 24
UNITS = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))
_NOTHING = Span(0.0, 0.0, style="nothing")


@dataclass(frozen=True)
class Part:
    """A row: ideal time, a cause, or the measured time. One text and one bar for each side."""

    name: str
    texts: tuple[str, ...]
    change: str
    bars: tuple[Strip, ...]
    total: bool


@dataclass(frozen=True)
class Taken:
    """One cell's step, taken apart; `origin` is where the axis of its bars begins."""

    cell: str
    sides: tuple[str, ...]
    unit: str
    origin: str
    sentences: tuple[str, ...]
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """What the template shows: whole waterfalls, the sentences of others, why there is none, and what causes mean."""

    taken: tuple[Taken, ...]
    sentences: Rows[tuple[str, str]]
    without: Rows[tuple[str, str]]
    causes: tuple[tuple[str, str], ...]


def view(record: Record, baseline: Baseline | None) -> View | None:
    """The gravest cells first; None where no step was taken apart and nothing says why."""
    cells = figures.graver_first([cell for cell in record.cells if cell.waterfalls])
    reasons: dict[str, list[str]] = {}
    for cell in record.cells:
        if cell.waterfall_note and not cell.waterfalls:
            reasons.setdefault(cell.waterfall_note, []).append(cell.id)
    if not cells and not reasons:
        return None
    others = cells[MAX_WATERFALLS:]
    return View(
        taken=tuple(_taken(cell) for cell in cells[:MAX_WATERFALLS]),
        sentences=bounded([(cell.id, cell.waterfalls[0].sentence) for cell in others], len(others)),
        without=bounded([(_some(ids), reason) for reason, ids in reasons.items()], len(reasons)),
        causes=tuple(CAUSES.items()) if cells else (),
    )


def _some(ids: Sequence[str], most: int = 8) -> str:
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(ids[:most]) + more


def _taken(cell: CellRecord) -> Taken:
    found = cell.waterfalls
    factor, unit = next(
        (choice for choice in UNITS if max(abs(side.measured_s.estimate) for side in found) >= choice[0] ** -1),
        UNITS[-1],
    )
    origin = _origin(found)
    spans = [_spans(side, origin) for side in found]
    names = list(dict.fromkeys(name for side in spans for name in side))
    names.sort(key=("measured",).__contains__)  # the total closes the table, also where a side has more causes
    drawn = strips([side[name][1] if name in side else _NOTHING for name in names for side in spans], (origin,))
    parts = []
    for number, name in enumerate(names):
        values = [side[name][0] if name in side else None for side in spans]
        bars = drawn[number * len(spans) : (number + 1) * len(spans)]
        texts = tuple(figures.interval(value, ".2f", factor=factor) for value in values)
        parts.append(Part(name, texts, _change(values, factor), tuple(bars), name in ("ideal", "measured")))
    sentences = [side.sentence for side in found] if len(found) == 1 else [f"{s.side}: {s.sentence}" for s in found]
    return Taken(
        cell=cell.id,
        sides=tuple(side.side for side in found),
        unit=unit,
        origin=figures.number(origin * factor, ".3g"),
        sentences=tuple(sentences),
        parts=tuple(parts),
        notes=tuple(dict.fromkeys(note for side in found for note in side.notes)),
    )


def _origin(found: Sequence[WaterfallRecord]) -> float:
    """Seconds at which bars begin: 0, or just below the ideal where the parts would be too small to see."""
    lowest = min(min(side.ideal_s.estimate, side.measured_s.estimate) for side in found)
    highest = max(max(side.ideal_s.estimate, side.measured_s.estimate) for side in found)
    origin = lowest - (highest - lowest) / 2
    return origin if origin > highest / 3 else 0.0


def _spans(found: WaterfallRecord, origin: float) -> dict[str, tuple[IntervalRecord, Span]]:
    """Every part with its bar, which begins where the one before ended."""
    level = found.ideal_s.estimate
    spans = {"ideal": (found.ideal_s, _total(found.ideal_s, origin))}
    for bar in found.bars:
        value = bar.step_s
        low, high = (None if bound is None else level + bound for bound in (value.low, value.high))
        style = "saves" if value.estimate < 0 else "bar"
        spans[figures.causes(bar)] = (value, Span(level, level + value.estimate, low, high, style))
        level += value.estimate
    spans["measured"] = (found.measured_s, _total(found.measured_s, origin))
    return spans


def _total(value: IntervalRecord, origin: float) -> Span:
    return Span(origin, value.estimate, value.low, value.high, "total")


def _change(values: Sequence[IntervalRecord | None], factor: float) -> str:
    """How much longer the candidate takes than the base; empty where there is one side, or one has no such part."""
    if len(values) < 2 or values[0] is None or values[1] is None:
        return ""
    return figures.number((values[0].estimate - values[1].estimate) * factor, "+.2f")
