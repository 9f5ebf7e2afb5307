"""Our collectives against torch.distributed's, on real gloo ranks and the same inputs.

Whole numbers only, whose sums are exact in any order; sums of others: `suite.properties.functions.all_reduce_sums`.
Parameters that are split are read whole there too, as `full_tensor` gives them.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from reference.all_reduce import ALL_REDUCE
from reference.all_reduce.sharded import reduce_scatter
from suite.checks.bench import Bench
from suite.properties.hooks import MOST_NUMBERS, whole
from tests.support import on_ranks
from tests.support.collectives import whole_numbers
from tests.support.strategies import seeds

DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8")


def reduce(values: list[list[int]], dtype: str) -> dict[str, Any]:
    """Return torch's all_reduce of this rank's row, and its shard of a reduce_scatter where ranks divide the row."""
    mine = torch.tensor(values[dist.get_rank()], dtype=getattr(torch, dtype))
    total = mine.clone()
    dist.all_reduce(total)
    if len(mine) % dist.get_world_size():
        return {"sum": total.tolist(), "shard": None}
    shard = mine.new_empty(len(mine) // dist.get_world_size())
    dist.reduce_scatter_tensor(shard, mine)
    return {"sum": total.tolist(), "shard": shard.tolist()}


@pytest.mark.parametrize("k", [2, 3, 4])
@settings(max_examples=20)
@given(n=st.integers(1, 13), seed=seeds, dtype=st.sampled_from(DTYPES))
def test_every_algorithm_agrees_with_torchs(bench: Bench, k: int, n: int, seed: int, dtype: str) -> None:
    tensors = whole_numbers((n,), k, seed, getattr(torch, dtype))
    values = [tensor.tolist() for tensor in tensors]
    theirs = on_ranks.run(bench, "tests.processes.test_gloo:reduce", [k], values=values, dtype=dtype)[k]
    for all_reduce_ in ALL_REDUCE.values():
        mine = [tensor.clone() for tensor in tensors]
        all_reduce_(mine)
        assert [tensor.tolist() for tensor in mine] == [answer["sum"] for answer in theirs], all_reduce_.__name__
    if theirs[0]["shard"] is not None:
        assert [shard.tolist() for shard in reduce_scatter(tensors)] == [answer["shard"] for answer in theirs]


SHAPES = ((1,), (2, 3), (3, 2), (5,), (4, 1, 2), (7, 5), (0, 3))


def compare(most_numbers: int) -> dict[str, Any]:
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
