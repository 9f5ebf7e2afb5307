"""The type of an all-reduce function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

AllReduce = Callable[[Sequence[Tensor]], None]
"""Takes one tensor per device, of equal shapes and dtypes, and replaces each by the sum of all, in place."""
