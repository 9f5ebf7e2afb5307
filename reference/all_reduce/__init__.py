"""Algorithms that leave the sum of one tensor per device on every device, in place: one a file, one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from reference.all_reduce.naive import naive_

AllReduce = Callable[[Sequence[Tensor]], None]

ALL_REDUCE: dict[str, AllReduce] = {"naive": naive_}
