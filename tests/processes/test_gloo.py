"""Our collectives against torch.distributed's, on real gloo ranks and the same inputs.

Whole numbers only, whose sums are exact in any order; sums of others: `suite.properties.functions.all_reduce_sums`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed as dist

from reference.all_reduce import ALL_REDUCE
from reference.all_reduce.sharded import reduce_scatter
from suite.checks.bench import Bench
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
