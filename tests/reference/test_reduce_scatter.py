"""Reduce-scatter and all-gather, the two halves of the sharded all-reduce."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reference.all_reduce.sharded import all_gather, reduce_scatter
from tests.support.collectives import DTYPES, STRANGER, Layout, chunk, layouts, shapes, traffic_of, whole_numbers
from tests.support.strategies import seeds


@given(k=st.integers(0, 8), shape=shapes, layouts=layouts, seed=seeds, dtype=st.sampled_from(DTYPES))
def test_reduce_scatter_and_all_gather_are_the_halves_of_an_all_reduce(
    k: int, shape: tuple[int, ...], layouts: list[Layout], seed: int, dtype: torch.dtype
) -> None:
    """Device i gets shard i of the sum in new memory; each half has its part of sharded's traffic."""
    before = whole_numbers(shape, k, seed, dtype)
    tensors = [layout(values) for values, layout in zip(before, layouts, strict=False)]
    shards: list[Tensor] = []
    sent, received = traffic_of(lambda: shards.extend(reduce_scatter(tensors)), k)
    assert all(torch.equal(tensor, values) for tensor, values in zip(tensors, before, strict=True))
    total = sum(before, torch.zeros(shape, dtype=dtype)).flatten()
    n = total.numel()
    assert [shard.tolist() for shard in shards] == [piece.tolist() for piece in total.tensor_split(max(k, 1))][:k]
    assert sent == [dtype.itemsize * (n - chunk(i, n, k)) for i in range(k)]
    assert received == [dtype.itemsize * (k - 1) * chunk(i, n, k) for i in range(k)]
    gathered: list[Tensor] = []
    assert traffic_of(lambda: gathered.extend(all_gather(shards)), k) == (received, sent)
    assert [whole.tolist() for whole in gathered] == [total.tolist()] * k
    for mine in (*shards, *gathered):
        mine.fill_(STRANGER)
    assert all(torch.equal(tensor, values) for tensor, values in zip(tensors, before, strict=True))


def test_all_gather_takes_shards_of_any_lengths() -> None:
    gathered = all_gather([torch.tensor([1, 2, 3]), torch.tensor([], dtype=torch.int64), torch.tensor([4])])
    assert [whole.tolist() for whole in gathered] == [[1, 2, 3, 4]] * 3


def test_tensors_that_do_not_fit_are_reported() -> None:
    with pytest.raises(ValueError, match=r"tensor 1 is .* needs equal shapes and dtypes on every device"):
        reduce_scatter([torch.zeros(2), torch.zeros(3)])
    for other in (torch.zeros(1, 2), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(
            ValueError, match=r"shard 1 is .* an all_gather needs vectors of one dtype, as reduce_scatter"
        ):
            all_gather([torch.zeros(2), other])
