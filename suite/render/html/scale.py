"""From values to pixels, and the round numbers that an axis names. Pure.

Anything finite can be drawn: what lies beyond `FARTHEST` is drawn there, so that no difference of two values overflows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FARTHEST = 1e300
TICKS = 6  # about so many on an axis
PADDING = 0.05  # of the span, on either side
_LOG_LIMIT = 305.0  # of the padded ends: a double has ten to the 308
_MANTISSAS = ((1, 2, 5), (1, 3), (1,))


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high`, on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; one outside lies on the edge."""
        low, high, at = (self._place(v) for v in (self.low, self.high, min(max(value, self.low), self.high)))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def _place(self, value: float) -> float:
        return math.log10(value) if self.log else value


def drawable(value: float, *, log: bool) -> bool:
    """Whether a value has a place on an axis: a finite double, and on a logarithmic one positive."""
    try:
        return math.isfinite(value) and (value > 0 or not log)
    except OverflowError:  # an integer beyond all doubles
        return False


def fit(values: Iterable[float], start: float, end: float, *, log: bool = False) -> Scale:
    """A scale on which all drawable values have a place, and some room around them.

    Args:
        values: those that cannot be drawn do not count; without any the scale is from 0 to 1 (from 1 to 10).
        start: pixel of the low end.
        end: pixel of the high end.
        log: whether equal ratios take equal room.
    """
    kept = [min(max(value, -FARTHEST), FARTHEST) for value in values if drawable(value, log=log)]
    if log:
        logs = [math.log10(max(value, 1 / FARTHEST)) for value in kept] or [0.0, 1.0]
        low, high = _padded(min(logs), max(logs), smallest=0.02)
        return Scale(10 ** max(low, -_LOG_LIMIT), 10 ** min(high, _LOG_LIMIT), start, end, log=True)
    low, high = min(kept, default=0.0), max(kept, default=1.0)
    # What differs by less than a thousandth is drawn as the little that it is.
    largest = max(abs(low), abs(high))
    first, last = _padded(low, high, smallest=max(largest * 1e-3, 1 / FARTHEST) if largest else 1.0)
    # An axis that begins at zero keeps doing so: below it there is nothing to show.
    return Scale(0.0 if low == 0.0 < high else first, last, start, end)


def _padded(low: float, high: float, smallest: float) -> tuple[float, float]:
    span = max(high - low, smallest)
    middle = low + (high - low) / 2
    return middle - span * (0.5 + PADDING), middle + span * (0.5 + PADDING)


def ticks(scale: Scale) -> list[tuple[float, str]]:
    """Round values within a scale, with their wording."""
    if scale.log and scale.high / scale.low >= 10:
        return _decades(scale)
    return _evenly(scale)


def _evenly(scale: Scale) -> list[tuple[float, str]]:
    exponent = math.floor(math.log10((scale.high - scale.low) / TICKS))
    unit = 10.0**exponent
    step = next((m * unit for m in (1, 2, 5) if (scale.high - scale.low) / (m * unit) <= TICKS), 10 * unit)
    first, last = math.ceil(scale.low / step), math.floor(scale.high / step)
    values = [number * step for number in range(first, last + 1) if scale.low <= number * step <= scale.high]
    return list(zip(values, _texts(values, step), strict=True))


def _texts(values: Sequence[float], step: float) -> list[str]:
    """As many decimals as tell the ticks apart; powers of ten where these would be many digits."""
    if step < 1e-6 or any(abs(value) >= 1e7 for value in values):
        return [f"{value:.3g}" for value in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{value:,.{decimals}f}" for value in values]


def _decades(scale: Scale) -> list[tuple[float, str]]:
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    found: list[float] = []
    for mantissas in _MANTISSAS:
        found = [m * 10.0**decade for decade in range(first, last) for m in mantissas]
        found = [value for value in found if scale.low <= value <= scale.high]
        if len(found) <= TICKS + 1:
            break
    every = math.ceil(len(found) / (TICKS + 1))
    return [(value, f"{value:,.10g}" if 1e-4 <= value < 1e6 else f"{value:.0e}") for value in found[::every]]
