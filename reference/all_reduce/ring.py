"""All-reduce around a ring: every device talks to its two neighbours only, and all links are busy in every step.

A reduce-scatter, after which device i holds the sum of chunk i, and an all-gather (Patarasuk, Yuan, "Bandwidth optimal
all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009, where it is also shown that no algorithm gets by
with fewer bytes). Least traffic, most steps: for large tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.all_reduce.check import check
from reference.all_reduce.flat import flattened
from reference.all_reduce.traffic import send_


@torch.no_grad()
def ring_(tensors: Sequence[Tensor]) -> None:
    """Replace every tensor's values by the sum over all of them, in 2 (k - 1) steps.

    The tensor of n elements is cut into k chunks, c_0 to c_(k-1) elements long. Device i sends all chunks but its own,
    then all but its successor's, 2n - c_i - c_(i+1), and receives 2n - c_(i-1) - c_i. That is exactly 2 (k - 1) / k n
    where k divides n. Elsewhere the first n mod k chunks are one element longer, and a device is at most two elements
    away from it; with fewer elements than devices the last chunks are empty.

    Args:
        tensors: one a device, of equal shapes and dtypes; none at all is allowed.

    Raises:
        ValueError: as in `check`; nothing is changed then.
    """
    check(tensors)
    k = len(tensors)
    with flattened(tensors) as vectors:
        chunks = [vector.tensor_split(k) for vector in vectors]
        for step in range(1, k):
            _pass_on(chunks, step, accumulate=True)
        for step in range(k - 1):
            _pass_on(chunks, step)


def _pass_on(chunks: Sequence[Sequence[Tensor]], behind: int, *, accumulate: bool = False) -> None:
    """Let every device send its successor the chunk whose number is ``behind`` places before the device's own."""
    k = len(chunks)
    # In the order of the ranks each transfer would share a GPU with the one just before, and wait for it (see `send_`).
    for rank in (*range(0, k, 2), *range(1, k, 2)):
        successor, number = (rank + 1) % k, (rank - behind) % k
        send_(chunks[rank][number], chunks[successor][number], source=rank, target=successor, accumulate=accumulate)
