"""Windows of simulated sessions, as the verdict takes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from suite.verdict import Middle, Windows


def windows_of(sides: npt.NDArray[np.float64]) -> list[Windows]:
    """Return sessions, from an array of shape (2, sessions, windows): candidate and base, ln(seconds a step)."""
    return [Windows(own, other) for own, other in zip(*sides.tolist(), strict=True)]


def middles_of(sides: npt.NDArray[np.float64]) -> list[Middle]:
    """Return what each session shows of the same."""
    return [Middle.of(windows) for windows in windows_of(sides)]
