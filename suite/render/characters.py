"""Curves and intervals as characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from suite.render import scale
from suite.render.document import Rules, Span

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 20
DRAWN = 24  # characters of a drawn interval


def sparkline(shares: Sequence[float], width: int = WIDTH) -> str:
    """Return shares of one as blocks, the lowest for 0 and the highest for 1, so that two curves can be compared.

    Args:
        shares: each from 0 to 1.
        width: the largest number of blocks; of more shares, equally spaced ones are shown, including the last.
    """
    count = min(len(shares), width)
    shown = [shares[(number + 1) * len(shares) // count - 1] for number in range(count)]
    return "".join(BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)] for share in shown)


def intervals(spans: Sequence[Span | None], rules: Rules, *, plain: bool = False, width: int = DRAWN) -> Iterator[str]:
    """Yield each span in a line of so many characters, all on one axis.

    A dot has its interval to both sides; a line stands at the first rule, a dotted one at the others.

    Args:
        spans: None, or a span without a place on the axis, is an empty line.
        rules: the axis.
        plain: whether only ASCII may be used.
        width: of each line.
    """
    dash, dot, line, dotted = "-o|:" if plain else "─●│┊"
    ends = [value for span in spans if span is not None for value in span[:4] if value is not None]
    axis = scale.fit([*ends, *rules.at], 0.0, width - 1.0, log=rules.log)
    for span in spans:
        if span is None or not scale.drawable(span.end, log=rules.log):
            yield ""
            continue
        characters = [" "] * width
        for number, at in enumerate(rules.at):
            characters[round(axis(at))] = dotted if number else line
        ends = [end for end in span[:4] if end is not None and scale.drawable(end, log=rules.log)]
        for place in range(round(axis(min(ends))), round(axis(max(ends))) + 1):
            if characters[place] == " ":
                characters[place] = dash
        characters[round(axis(span.end))] = dot
        yield "".join(characters).rstrip()
