"""A learning curve in one line of text."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 20


def sparkline(shares: Sequence[float], width: int = WIDTH) -> str:
    """Return shares of one as blocks, the lowest for 0 and the highest for 1, so that two curves can be compared.

    Args:
        shares: each from 0 to 1.
        width: the largest number of blocks; of more shares, equally spaced ones are shown, including the last.
    """
    count = min(len(shares), width)
    shown = [shares[(number + 1) * len(shares) // count - 1] for number in range(count)]
    return "".join(BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)] for share in shown)
