"""Parameters are read whole on real ranks, however they are split, and as `full_tensor` gives them."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from suite.checks.bench import Bench
from suite.properties.gradients import MOST_NUMBERS, whole

SHAPES = ((1,), (2, 3), (3, 2), (5,), (4, 1, 2), (7, 5), (0, 3))


def compare(most_numbers: int) -> dict[str, Any]:
    """Read parameters that are split in several ways, on every rank."""
    ranks = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(5)
    values = [torch.randn(shape, dtype=(torch.float32, torch.bfloat16)[len(shape) % 2]) for shape in SHAPES]
    by_rows = [nn.Parameter(distribute_tensor(value, mesh, [Shard(0)])) for value in values]
    others: list[Tensor] = [
        nn.Parameter(values[1].clone()),
        distribute_tensor(values[1], mesh, [Shard(1)]),
        distribute_tensor(values[2], mesh, [Replicate()]),
    ]
    mixed = [others[0], *by_rows[:4], others[1], *by_rows[4:], others[2]]
    as_given = [values[1], *values[:4], values[1], *values[4:], values[2]]
    read = whole(mixed, most_numbers)
    return {
        "equal": [torch.equal(one, value.double()) for one, value in zip(read, as_given, strict=True)],
        "plain": not any(isinstance(one, DTensor) or one.requires_grad for one in read),
        "copied": read[0].data_ptr() != others[0].data_ptr(),
    }


@pytest.mark.parametrize("most_numbers", [1, 12, MOST_NUMBERS])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_reads_full_values_in_order_whatever_is_gathered_at_once(
    bench: Bench, ranks: int, most_numbers: int
) -> None:
    group, _ = bench.place("fsdp", ranks)
    arguments = {"function": f"{__name__}:compare", "arguments": {"most_numbers": most_numbers}}
    answers = [answer["returned"] for answer in group.request(dict, "call", **arguments)]
    assert answers == [{"equal": [True] * (len(SHAPES) + 3), "plain": True, "copied": True}] * ranks
