"""The type of every all-reduce here: of the table's entries, and of an algorithm handed to another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

AllReduce = Callable[[Sequence[Tensor]], None]
"""Takes one tensor a device, of equal shapes and dtypes, and leaves the sum in each of them."""
