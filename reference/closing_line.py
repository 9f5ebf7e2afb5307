"""The line that ends a training run, as the lecture notebook prints it. Pure: knows neither torch nor pytest."""

from __future__ import annotations

from collections.abc import Sequence


def closing_line(accuracy: float, sec_per_epoch: float, devices: Sequence[object]) -> str:
    """Return ``test acc 0.83, 2.6 sec/epoch on [cuda:0, cuda:1]``.

    Args:
        accuracy: share of the test samples, 0 to 1.
        sec_per_epoch: seconds, evaluation and warm-up excluded.
        devices: anything whose ``str`` is the device's name.
    """
    return f"test acc {accuracy:.2f}, {sec_per_epoch:.1f} sec/epoch on [{', '.join(map(str, devices))}]"
