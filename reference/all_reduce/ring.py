"""All-reduce around a ring: every device exchanges only with its two neighbours, and all links are used in every step.

A reduce-scatter, after which device i holds the sum of chunk i, is followed by an all-gather (Patarasuk, Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009, who also show that no
algorithm needs fewer bytes). It has the least traffic and the most steps, so it suits large tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.all_reduce.check import check, flattened
from reference.all_reduce.traffic import send_


@torch.no_grad()
def ring_(tensors: Sequence[Tensor]) -> None:
    """Replace every tensor's values by the sum over all of them, in 2 (k - 1) steps.

    The tensor of n elements is cut into k chunks of c_0 to c_(k-1) elements. Device i sends all chunks but its own,
    then all but its successor's: 2n - c_i - c_(i+1) elements. It receives 2n - c_(i-1) - c_i. Both are exactly
    2 (k - 1) / k n where k divides n. Otherwise the first n mod k chunks are one element longer, and a device's figures
    differ from that by at most two elements; with fewer elements than devices the last chunks are empty.
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
    """Send from every device to its successor the chunk whose number is ``behind`` below the device's own (mod k)."""
    k = len(chunks)
    # Even ranks first: in rank order a transfer would share a GPU with the previous one, and wait for it (see `send_`).
    for rank in (*range(0, k, 2), *range(1, k, 2)):
        successor, number = (rank + 1) % k, (rank - behind) % k
        send_(chunks[rank][number], chunks[successor][number], source=rank, target=successor, accumulate=accumulate)
