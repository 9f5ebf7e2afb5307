"""Parameters as every rank can compare them: whole, in float64, on the CPU (worker's side)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MOST_NUMBERS = 1 << 20  # 8 MiB on the device where the parameters are


def whole(parameters: Sequence[Tensor], most_numbers: int = MOST_NUMBERS) -> list[Tensor]:
    """Return a float64 CPU copy of each parameter's full value; every rank must call it, because shards are gathered.

    Parameters that are split by rows over the same ranks share an all_gather: a generated net has a dozen small ones,
    and gloo needs milliseconds for each gather.

    Args:
        parameters: of any device.
        most_numbers: that are gathered at once, unless one parameter has more.
    """
    gathered: dict[int, Tensor] = {}
    for batch in _batches([one for one in parameters if _split_by_rows(one)], most_numbers):
        gathered |= zip(map(id, batch), _gathered(batch), strict=True)
    return [gathered[id(one)] if id(one) in gathered else _alone(one) for one in parameters]


def _alone(parameter: Tensor) -> Tensor:
    full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return full.detach().to("cpu", torch.float64, copy=True)


def _split_by_rows(parameter: Tensor) -> bool:
    """Return whether a parameter is a DTensor whose first dimension is split over a mesh of one dimension."""
    placements: Sequence[Any] = getattr(parameter, "placements", ())
    return len(placements) == 1 and bool(placements[0].is_shard(0))


def _batches(parameters: Sequence[Any], most_numbers: int) -> Iterator[list[Any]]:
    """Yield parameters that are gathered at once, in their order."""
    batch: list[Any] = []
    numbers = 0
    for parameter in parameters:
        too_many = numbers + parameter.numel() > most_numbers
        if batch and (too_many or parameter.device_mesh != batch[0].device_mesh):
            yield batch
            batch, numbers = [], 0
        batch.append(parameter)
        numbers += parameter.numel()
    if batch:
        yield batch


def _gathered(batch: Sequence[Any]) -> list[Tensor]:
    """Return the full values of parameters of one mesh, by one all_gather of every rank's rows of all of them."""
    mesh = batch[0].device_mesh
    shards = [_padded_shard(parameter, mesh.size()) for parameter in batch]
    mine = torch.cat(shards)
    all_ranks = mine.new_empty(mesh.size() * len(mine))
    dist.all_gather_into_tensor(all_ranks, mine, group=mesh.get_group())
    by_rank = torch.split(all_ranks.reshape(mesh.size(), -1).cpu(), [len(shard) for shard in shards], dim=1)
    return [
        rows.reshape(-1)[: parameter.numel()].reshape(parameter.shape)
        for parameter, rows in zip(batch, by_rank, strict=True)
    ]


def _padded_shard(parameter: Any, ranks: int) -> Tensor:
    """Return a rank's rows, float64 and flat, with zeros at the end up to the length of the longest shard."""
    rows, length = -(-parameter.shape[0] // ranks), math.prod(parameter.shape[1:])
    mine = parameter.detach().to_local().to(torch.float64).flatten()
    return nn.functional.pad(mine, (0, rows * length - len(mine)))
