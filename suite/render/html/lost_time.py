"""Where a step's time went: a waterfall for each cell, of candidate and base side by side where there are two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.records.record import CellRecord, IntervalRecord, Record, WaterfallRecord
from suite.render import figures
from suite.render.html.chart import Span, strips
from suite.render.html.environment import bounded
from suite.verdict.diagnose import CAUSES, bar_name

MAX_WATERFALLS = 24
MAX_NAMES = 8  # of cells without a waterfall
UNITS = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))


def waterfalls(record: Record) -> Mapping[str, object] | None:
    """Return whole waterfalls, the gravest cells first, the sentences of other cells, and why cells have none.

    None where there is no waterfall and no reason.
    """
    cells = figures.gravest_first([cell for cell in record.cells if cell.waterfalls])
    unexplained = [cell for cell in record.cells if not cell.waterfalls and cell.why("waterfall")]
    reasons = figures.labels((cell.why("waterfall"), cell) for cell in unexplained)
    if not cells and not reasons:
        return None
    others = [(cell.label, cell.waterfalls[0].sentence) for cell in cells[MAX_WATERFALLS:]]
    without = [(figures.some(ids, MAX_NAMES), reason) for reason, ids in reasons.items()]
    return {
        "waterfalls": [_waterfall(cell) for cell in cells[:MAX_WATERFALLS]],
        "sentences": bounded(others, len(others)),
        "without": bounded(without, len(without)),
        "causes": CAUSES if cells else {},
    }


def _waterfall(cell: CellRecord) -> dict[str, object]:
    """Return the rows of one cell's table; `origin` is where the axis of its bars begins."""
    sides = cell.waterfalls
    longest = max(abs(side.measured_s.estimate) for side in sides)
    factor, unit = next((choice for choice in UNITS if longest * choice[0] >= 1), UNITS[-1])
    origin = _origin(sides)
    spans = [_spans(side, origin) for side in sides]
    names = list(dict.fromkeys(name for side in spans for name in side))
    names.sort(key=lambda name: name == "measured")  # the total closes the table, also where a side has more causes
    drawn = strips([side[name][1] if name in side else None for name in names for side in spans], (origin,))
    parts = []
    for name in names:
        values = [side[name][0] if name in side else None for side in spans]
        parts.append(
            {
                "name": name,
                "texts": [_text(value, side, factor) for value, side in zip(values, sides, strict=True)],
                "change": _change(values, factor),
                "bars": [next(drawn) for _ in spans],
                "total": name in ("ideal", "measured"),
            }
        )
    return {
        "cell": cell.label,
        "sides": [side.side for side in sides],
        "unit": unit,
        "origin": figures.number(origin * factor, ".3g"),
        "sentences": [side.sentence if len(sides) == 1 else f"{side.side}: {side.sentence}" for side in sides],
        "parts": parts,
        "notes": list(dict.fromkeys(note for side in sides for note in side.notes)),
    }


def _origin(sides: Sequence[WaterfallRecord]) -> float:
    """Return the seconds at which bars begin: 0, or just below the ideal where the parts would be too small to see."""
    totals = [total.estimate for side in sides for total in (side.ideal_s, side.measured_s)]
    lowest, highest = min(totals), max(totals)
    origin = lowest - (highest - lowest) / 2
    return origin if origin > highest / 3 else 0.0


def _spans(side: WaterfallRecord, origin: float) -> dict[str, tuple[IntervalRecord, Span]]:
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


def _total(value: IntervalRecord, origin: float) -> Span:
    return Span(origin, value.estimate, value.low, value.high, "total")


def _bounds(value: IntervalRecord | None) -> tuple[float, float] | None:
    return None if value is None or value.low is None or value.high is None else (value.low, value.high)


def _text(value: IntervalRecord | None, side: WaterfallRecord, factor: float) -> str:
    """Return a part with its interval; "not known" where that reaches further to a side than the step is long."""
    bounds = _bounds(value)
    if bounds is not None and bounds[1] - bounds[0] > 2 * abs(side.measured_s.estimate):
        return "not known"
    return figures.interval(value, ".2f", factor=factor)


def _change(values: Sequence[IntervalRecord | None], factor: float) -> str:
    """Return how much longer the candidate takes than the base; empty where the intervals do not show a difference."""
    if len(values) < 2 or values[0] is None or values[1] is None:
        return ""
    own, base = (_bounds(value) for value in values)
    if own is None or base is None or (own[0] <= base[1] and base[0] <= own[1]):
        return ""
    return figures.number((values[0].estimate - values[1].estimate) * factor, "+.2f")
