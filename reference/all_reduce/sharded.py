"""All-reduce with "different parameters on different devices" (the book's exercise): device i sums shard i for all.

Device i gets shard i directly from every other device, and sends the sum back. The two halves are collectives too:
`reduce_scatter` gives each device its shard of the sum, `all_gather` joins the shards on every device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from reference.all_reduce.check import check, flattened
from reference.all_reduce.traffic import send_


@torch.no_grad()
def sharded_(tensors: Sequence[Tensor]) -> None:
    """Replace every tensor's values by the sum over all of them: a reduce-scatter and an all-gather, both in place.

    Of n elements device i owns c_i. It sends the n - c_i others and receives its own k - 1 times, then the reverse:
    n + (k - 2) c_i in each direction, which is exactly 2 (k - 1) / k n where k divides n. Otherwise the first n mod k
    shards are one element longer than the rest; with fewer elements than devices the last shards are empty.
    """
    check(tensors)
    with flattened(tensors) as vectors:
        pieces = [vector.tensor_split(len(tensors)) for vector in vectors]
        _collect(pieces)
        _spread(pieces)


@torch.no_grad()
def reduce_scatter(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sum of the tensors, one per device, in shards, the i-th on device i; the tensors stay as they are.

    Of n elements device i sends n - c_i and receives (k - 1) c_i. The shards are vectors (c_i,) in new memory: the flat
    sum, split as by ``torch.tensor_split``. Raises as `check` does.
    """
    check(tensors)
    pieces = [list(tensor.detach().reshape(-1).tensor_split(len(tensors))) for tensor in tensors]
    for rank, row in enumerate(pieces):
        row[rank] = row[rank].clone()
    _collect(pieces)
    return [row[rank] for rank, row in enumerate(pieces)]


@torch.no_grad()
def all_gather(shards: Sequence[Tensor]) -> list[Tensor]:
    """Return the concatenation (n,) of all shards on every device, in new memory; the shards stay as they are.

    They are vectors (c_i,), one per device, of one dtype, else ValueError; lengths may differ, and there may be none.
    Device i sends its c_i elements to k - 1 others and receives n - c_i.
    """
    for rank, shard in enumerate(shards):
        if shard.ndim != 1 or shard.dtype != shards[0].dtype:
            raise ValueError(
                f"shard {rank} is {tuple(shard.shape)} {shard.dtype} and shard 0 has dtype {shards[0].dtype}: "
                f"an all_gather needs vectors of one dtype, as reduce_scatter returns them"
            )
    sizes = [len(shard) for shard in shards]
    gathered = [shard.new_empty(sum(sizes)) for shard in shards]
    pieces = [torch.split(vector, sizes) for vector in gathered]
    for rank, shard in enumerate(shards):
        pieces[rank][rank].copy_(shard)
    _spread(pieces)
    return gathered


def _collect(pieces: Sequence[Sequence[Tensor]]) -> None:
    """Add piece i of every other device to that of device i."""
    for source, target in _ordered_pairs(len(pieces)):
        send_(pieces[source][target], pieces[target][target], source=source, target=target, accumulate=True)


def _spread(pieces: Sequence[Sequence[Tensor]]) -> None:
    """Copy piece i of device i to every other device."""
    for source, target in _ordered_pairs(len(pieces)):
        send_(pieces[source][source], pieces[target][source], source=source, target=target)


def _ordered_pairs(k: int) -> Iterator[tuple[int, int]]:
    """Yield every (source, target) once, in k rounds: in round r the two devices whose ranks sum to r (mod k) exchange.

    So a device has at most one partner in a round. If device i sent to i + r instead, each transfer would share a GPU
    with another one of its round, and wait for it (see `send_`).
    """
    for total in range(k):
        for source in range(k):
            target = (total - source) % k
            if source != target:
                yield source, target
