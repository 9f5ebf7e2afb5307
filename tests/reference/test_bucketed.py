"""Many tensors in few exchanges: which tensors share a bucket, and that buckets do not change the sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reference.all_reduce import ALL_REDUCE, naive
from reference.all_reduce.bucketed import assign_buckets, bucketed_
from reference.all_reduce.traffic import count_traffic
from tests.support.collectives import DTYPES, Layout, layouts, shapes, whole_numbers
from tests.support.strategies import seeds

kinds = st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=6)


@settings(max_examples=200)
@given(
    k=st.integers(0, 5),
    kinds=kinds,
    bucket_bytes=st.integers(1, 200),
    layouts=layouts,
    seed=seeds,
    name=st.sampled_from(list(ALL_REDUCE)),
)
def test_buckets_do_not_change_the_sums(
    k: int, kinds: list[Any], bucket_bytes: int, layouts: list[Layout], seed: int, name: str
) -> None:
    """Tensor j of every device ends as the sum of all tensors j, whatever shares a bucket, with any algorithm."""
    before = [whole_numbers(shape, k, seed + number, dtype) for number, (shape, dtype) in enumerate(kinds)]
    per_device = [[layouts[(rank + j) % 8](copies[rank]) for j, copies in enumerate(before)] for rank in range(k)]
    places = [[tensor.data_ptr() for tensor in tensors] for tensors in per_device]
    bucketed_(per_device, bucket_bytes, ALL_REDUCE[name])
    assert [[tensor.data_ptr() for tensor in tensors] for tensors in per_device] == places
    for tensors in per_device:
        for tensor, copies in zip(tensors, before, strict=True):
            assert torch.equal(tensor, sum(copies[1:], copies[0]))


@given(kinds=kinds, bucket_bytes=st.integers(1, 200))
def test_buckets_are_filled_in_order_by_dtype_and_up_to_their_size(kinds: list[Any], bucket_bytes: int) -> None:
    """A new bucket begins only where the last one of the dtype has no room."""
    tensors = [torch.zeros(shape, dtype=dtype) for shape, dtype in kinds]
    buckets = assign_buckets(tensors, bucket_bytes)
    assert sorted(number for bucket in buckets for number in bucket) == list(range(len(tensors)))
    assert all(bucket == sorted(bucket) for bucket in buckets)
    assert [bucket[0] for bucket in buckets] == sorted(bucket[0] for bucket in buckets)
    sizes = [sum(tensors[number].nbytes for number in bucket) for bucket in buckets]
    assert all(size <= bucket_bytes or len(bucket) == 1 for size, bucket in zip(sizes, buckets, strict=True))
    assert all(len({tensors[number].dtype for number in bucket}) == 1 for bucket in buckets)
    last: dict[torch.dtype, int] = {}
    for size, bucket in zip(sizes, buckets, strict=True):
        first = tensors[bucket[0]]
        assert last.get(first.dtype, bucket_bytes + 1) + first.nbytes > bucket_bytes
        last[first.dtype] = size


def test_a_bucket_is_one_exchange_and_no_dtype_passes_through_another() -> None:
    """Four tensors of two dtypes make two buckets; float64 could not hold the whole number."""
    large = 2**53 + 1
    per_device = [
        [torch.ones(2), torch.tensor([large]), torch.ones(3, 3), torch.tensor(large)],
        [torch.ones(2), torch.tensor([0]), torch.ones(3, 3), torch.tensor(0)],
    ]
    with count_traffic() as traffic:
        bucketed_(per_device, all_reduce_=naive.naive_)
    assert traffic.link_messages == {(0, 1): 2, (1, 0): 2}
    assert traffic.link_bytes == {(0, 1): 11 * 4 + 16, (1, 0): 11 * 4 + 16}
    assert [tensors[1].item() for tensors in per_device] == [large] * 2
    assert [tensors[3].item() for tensors in per_device] == [large] * 2


def test_a_tensor_alone_in_its_bucket_is_reduced_where_it_lies() -> None:
    """Only tensors that share a bucket are copied."""
    per_device = [[torch.ones(9), torch.ones(3), torch.ones(3)] for _ in range(2)]
    reduced: list[Tensor] = []
    bucketed_(per_device, 24, reduced.extend)
    in_place = [any(tensor is mine for mine in per_device[0] + per_device[1]) for tensor in reduced]
    assert in_place == [True, True, False, False]


def test_a_devices_tensors_may_be_views_of_one_buffer() -> None:
    """As DistributedDataParallel keeps gradients with ``gradient_as_bucket_view``."""
    buffers = [torch.full((6,), float(rank)) for rank in range(3)]
    bucketed_([[buffer[:2], buffer[2:].view(2, 2)] for buffer in buffers], bucket_bytes=8)
    assert [buffer.tolist() for buffer in buffers] == [[3.0] * 6] * 3


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ([torch.ones(2)], r"device 1 has 1 tensors and device 0 has 2: .* zeros where one has nothing to add"),
        ([torch.ones(2), torch.ones(4)], r"at place 1 of the devices' lists, tensor 1 is \(4,\) .* needs equal shapes"),
        ([torch.ones(2), torch.ones(3, device="meta")], r"device 1 has tensors on cpu, meta: .* call once for each"),
        ([torch.ones(2), torch.ones(1).expand(3)], r"tensor 1 of device 1 is expanded"),
    ],
    ids=["number", "shape", "place", "memory"],
)
def test_lists_that_do_not_fit_together_are_reported_before_the_first_bucket(
    second: list[Tensor], message: str
) -> None:
    """No tensor has changed."""
    first = [torch.ones(2), torch.ones(3)]
    with pytest.raises(ValueError, match=message):
        bucketed_([first, second], bucket_bytes=1)
    assert [tensor.tolist() for tensor in first] == [[1.0] * 2, [1.0] * 3]


def test_a_tensor_that_is_twice_in_a_devices_list_is_reported() -> None:
    """A tied weight in two buckets would be summed twice."""
    tied = torch.ones(2)
    with pytest.raises(ValueError, match="tensor 0 of device 0 and tensor 1 of device 0 overlap in memory"):
        bucketed_([[tied, tied], [torch.ones(2), torch.ones(2)]], bucket_bytes=1)
    assert tied.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("per_device", [[], [[]], [[torch.ones(1)], [torch.ones(1)]]], ids=len)
def test_a_bucket_without_room_is_reported(per_device: list[list[Tensor]]) -> None:
    with pytest.raises(ValueError, match="bucket_bytes is 0: a bucket must hold at least 1 byte"):
        bucketed_(per_device, bucket_bytes=0)
