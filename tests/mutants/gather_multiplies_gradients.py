"""The gradient of a gathered tensor comes back once from every device that has it: k times too large.

Each device computes the loss over the whole batch, and the backward of the gather sums what all of them return. An
exchange that averages over the devices hides it, and one that adds does not.

Source: mlfoundations/open_clip#616
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

KIND = "gather"
KILLED_BY = "gather_returns_gradients"


class _ReturnedByAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joined: Tensor, devices: int) -> Tensor:
        ctx.devices = devices
        return joined.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.devices * gradients[0], None


def mutant(shards: Sequence[Tensor], device: torch.device) -> Tensor:
    joined = torch.cat([shard.to(device) for shard in shards])
    returned: Tensor = _ReturnedByAll.apply(joined, len(shards))  # type: ignore[no-untyped-call]
    return returned
