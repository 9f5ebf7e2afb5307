"""Our collectives beside torch.distributed's, on real gloo ranks and the same inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributed as dist

from reference.all_reduce import ALL_REDUCE
from reference.all_reduce.sharded import reduce_scatter
from suite.checks.bench import Bench
from suite.properties import tolerance
from tests.support import on_ranks
from tests.support.function_cases import EXACT

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8]


def reduce(values: list[list[float]], dtype: str) -> dict[str, Any]:
    """On a rank: torch's all_reduce of its row, and its shard of a reduce_scatter where the rows divide evenly."""
    mine = torch.tensor(values[dist.get_rank()], dtype=torch.float64).to(getattr(torch, dtype))
    total = mine.clone()
    dist.all_reduce(total)
    shard = None
    if len(mine) % dist.get_world_size() == 0:
        shard = mine.new_empty(len(mine) // dist.get_world_size())
        dist.reduce_scatter_tensor(shard, mine)
    return {"sum": total.double().tolist(), "shard": None if shard is None else shard.double().tolist()}


@st.composite
def rows(draw: st.DrawFn, k: int) -> list[Tensor]:
    """One vector a rank; whole numbers whose sums are exact, or any."""
    dtype, n = draw(st.sampled_from(DTYPES)), draw(st.integers(1, 13))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    if not dtype.is_floating_point or draw(st.booleans()):
        most = min(EXACT[dtype], 2**50)  # travels as a JSON number, which float64 must hold
        return [torch.randint(-most, most + 1, (n,), generator=generator).to(dtype) for _ in range(k)]
    return [torch.randn(n, generator=generator, dtype=torch.float64).to(dtype) for _ in range(k)]


@pytest.mark.parametrize("k", [2, 3, 4])
@settings(max_examples=20)
@given(data=st.data())
def test_every_algorithm_agrees_with_torchs(bench: Bench, k: int, data: st.DataObject) -> None:
    """To the bit on whole numbers; otherwise within twice the bound, because the additions come in other orders."""
    tensors = data.draw(rows(k))
    dtype = tensors[0].dtype
    whole = not dtype.is_floating_point or all(torch.equal(tensor, tensor.round()) for tensor in tensors)
    allowed = torch.zeros(len(tensors[0]), dtype=torch.float64) if whole else 2 * tolerance.sum_bound(tensors)
    values = [tensor.double().tolist() for tensor in tensors]
    name = str(dtype).removeprefix("torch.")
    theirs = on_ranks.run(bench, "tests.processes.test_gloo:reduce", [k], values=values, dtype=name)[k]
    for all_reduce_ in ALL_REDUCE.values():
        mine = [tensor.clone() for tensor in tensors]
        all_reduce_(mine)
        for rank in range(k):
            error = (mine[rank].double() - torch.tensor(theirs[rank]["sum"], dtype=torch.float64)).abs()
            assert bool((error <= allowed).all()), (all_reduce_.__name__, dtype, rank)
    if theirs[0]["shard"] is not None:
        found = torch.cat([shard.double() for shard in reduce_scatter(tensors)])
        expected = torch.tensor([value for answer in theirs for value in answer["shard"]], dtype=torch.float64)
        assert bool(((found - expected).abs() <= allowed).all())
