"""From values to pixels or characters, and the round numbers that an axis names. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from suite.render.document import Rules, Span

TICKS = 6  # about so many on an axis
PADDING = 0.05  # of the span, on either side
BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 20
DRAWN = 24  # characters of a drawn interval
SMALLEST = 1e-100  # as small as the numbers of a record are large: smaller ones are drawn here on a logarithmic axis


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high`, on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; one outside is on the edge."""
        low, high, at = (self._place(v) for v in (self.low, self.high, min(max(value, self.low), self.high)))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def _place(self, value: float) -> float:
        return math.log10(value) if self.log else value


def drawable(value: float, *, log: bool) -> bool:
    """Return whether a value has a place on an axis: it is finite, and positive on a logarithmic one."""
    return math.isfinite(value) and (value > 0 or not log)


def fit(values: Iterable[float], start: float, end: float, *, log: bool = False) -> Scale:
    """Return a scale on which all drawable values have a place, and some space around them.

    Without such a value it is from 0 to 1, or from 1 to 10 on a logarithmic axis.
    """
    kept = [value for value in values if drawable(value, log=log)]
    if log:
        logs = [math.log10(max(value, SMALLEST)) for value in kept] or [0.0, 1.0]
        low, high = _padded(min(logs), max(logs), smallest=0.02)
        return Scale(10**low, 10**high, start, end, log=True)
    low, high = min(kept, default=0.0), max(kept, default=1.0)
    # Values that differ by less than a thousandth are drawn close together.
    largest = max(abs(low), abs(high))
    first, last = _padded(low, high, smallest=max(largest * 1e-3, SMALLEST) if largest else 1.0)
    # An axis that begins at zero shows nothing below it.
    return Scale(0.0 if low == 0.0 < high else first, last, start, end)


def _padded(low: float, high: float, smallest: float) -> tuple[float, float]:
    span = max(high - low, smallest)
    middle = low + (high - low) / 2
    return middle - span * (0.5 + PADDING), middle + span * (0.5 + PADDING)


def ticks(scale: Scale) -> list[tuple[float, str]]:
    """Return round values within a scale, with their wording."""
    if scale.log and scale.high / scale.low >= 10:
        return _decades(scale)
    step = _step(scale.high - scale.low)
    first, last = math.ceil(scale.low / step), math.floor(scale.high / step)
    values = [number * step for number in range(first, last + 1) if scale.low <= number * step <= scale.high]
    return list(zip(values, _texts(values, step), strict=True))


def _step(span: float) -> float:
    """Return the smallest of 1, 2, 5 and 10 times a power of ten with at most `TICKS` steps in the span."""
    unit = 10.0 ** math.floor(math.log10(span / TICKS))
    return next((factor * unit for factor in (1, 2, 5) if span / (factor * unit) <= TICKS), 10 * unit)


def _texts(values: Sequence[float], step: float) -> list[str]:
    """Return as many decimals as tell the ticks apart; powers of ten where these would be many digits."""
    if step < 1e-6 or any(abs(value) >= 1e7 for value in values):
        return [f"{value:.3g}" for value in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{value:,.{decimals}f}" for value in values]


def _decades(scale: Scale) -> list[tuple[float, str]]:
    decades = [10.0**d for d in range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)))]
    values: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [f * decade for decade in decades for f in factors if scale.low <= f * decade <= scale.high]
        if len(values) <= TICKS + 1:
            break
    every = math.ceil(len(values) / (TICKS + 1))
    return [(value, f"{value:,.10g}" if 1e-4 <= value < 1e6 else f"{value:.0e}") for value in values[::every]]


def sparkline(shares: Sequence[float], width: int = WIDTH) -> str:
    """Return shares of one as blocks, the lowest for 0 and the highest for 1, so that two curves can be compared.

    Of more shares than `width`, equally spaced ones are shown, including the last.
    """
    count = min(len(shares), width)
    shown = [shares[(number + 1) * len(shares) // count - 1] for number in range(count)]
    return "".join(BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)] for share in shown)


def intervals(spans: Sequence[Span | None], rules: Rules, *, plain: bool = False, width: int = DRAWN) -> Iterator[str]:
    """Yield each span in a line of so many characters, all on one axis; an empty line where it has no place there.

    A dot has its interval to both sides; a line stands at the first rule, a dotted one at the others. `plain` uses
    ASCII alone.
    """
    dash, dot, line, dotted = "-o|:" if plain else "─●│┊"
    ends = [value for span in spans if span is not None for value in span[:4] if value is not None]
    axis = fit([*ends, *rules.at], 0.0, width - 1.0, log=rules.log)
    for span in spans:
        if span is None or not drawable(span.end, log=rules.log):
            yield ""
            continue
        characters = [" "] * width
        for number, at in enumerate(rules.at):
            characters[round(axis(at))] = dotted if number else line
        ends = [end for end in span[:4] if end is not None and drawable(end, log=rules.log)]
        for place in range(round(axis(min(ends))), round(axis(max(ends))) + 1):
            if characters[place] == " ":
                characters[place] = dash
        characters[round(axis(span.end))] = dot
        yield "".join(characters).rstrip()
