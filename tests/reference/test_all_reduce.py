"""All-reduce beyond its sums: its halves, buckets, and the bytes and messages of every algorithm, link by link.

`suite.properties.functions` checks that sums are exact, are in the caller's own tensors (also through a temporary list)
and are bit-equal on all devices: `tests/properties/test_properties.py` for every algorithm, `tests/mutants` for wrong
ones, the book's among them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.cuda import comm

from reference.all_reduce import ALL_REDUCE, AllReduce, naive, ring, sharded, tree
from reference.all_reduce.bucketed import assign_buckets, bucketed_
from reference.all_reduce.sharded import all_gather, reduce_scatter
from reference.all_reduce.traffic import count_traffic
from suite.properties.answers import RIGHT
from suite.properties.functions import all_reduce_keeps_tensors_apart, all_reduce_sums
from suite.room.devices import cuda_count
from tests.support.collectives import (
    DTYPES,
    FLOATS,
    STRANGER,
    Layout,
    chunk,
    gapped,
    layouts,
    reals,
    shapes,
    traffic_of,
    transposed,
    whole_numbers,
)
from tests.support.strategies import seeds, world_sizes

every_algorithm = pytest.mark.parametrize("all_reduce_", ALL_REDUCE.values(), ids=ALL_REDUCE.keys())


@every_algorithm
@given(k=st.integers(0, 8), shape=shapes, layouts=layouts, seed=seeds, dtype=st.sampled_from(DTYPES))
def test_strides_change_neither_the_sum_nor_the_memory_around_it(
    all_reduce_: AllReduce, k: int, shape: tuple[int, ...], layouts: list[Layout], seed: int, dtype: torch.dtype
) -> None:
    """Any dtype and number of devices, empty and 0-dim shapes, strides that differ from device to device."""
    before = whole_numbers(shape, k, seed, dtype)
    tensors = [layout(values) for values, layout in zip(before, layouts, strict=False)]
    places = [(tensor.data_ptr(), tensor.stride()) for tensor in tensors]
    all_reduce_(list(tensors))
    total = sum(before, torch.zeros(shape, dtype=dtype))
    assert all(torch.equal(tensor, total) for tensor in tensors)
    assert [(tensor.data_ptr(), tensor.stride()) for tensor in tensors] == places
    for tensor, layout in zip(tensors, layouts, strict=False):
        if layout is gapped:
            assert (tensor.as_strided(tensor.shape, tensor.stride(), 1) == STRANGER).all()


BUFFER = torch.ones(5)


@every_algorithm
@pytest.mark.parametrize(
    ("second", "message"),
    [
        (torch.zeros(3), r"tensor 1 is .* needs equal shapes and dtypes on every device"),
        (torch.zeros(2, dtype=torch.float64), r"tensor 1 is .* needs equal shapes and dtypes on every device"),
        (BUFFER[:2], r"tensor.* and tensor.* overlap in memory: .* clone\(\)"),
        (BUFFER[1:3], r"tensor.* and tensor.* overlap in memory: .* clone\(\)"),
        (torch.ones(1).expand(2), r"is expanded, shape \(2,\) with strides \(0,\): .* contiguous\(\)"),
        (torch.ones(2).to_sparse(), r"has layout torch.sparse_coo: an all_reduce needs dense tensors, as to_dense\(\)"),
    ],
    ids=["shape", "dtype", "same memory", "overlapping memory", "expanded", "sparse"],
)
def test_tensors_that_cannot_be_reduced_are_reported_and_left_alone(
    all_reduce_: AllReduce, second: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        all_reduce_([BUFFER[:2], second])
    assert BUFFER.tolist() == [1.0] * 5


@every_algorithm
def test_parameters_can_be_reduced_outside_no_grad(all_reduce_: AllReduce) -> None:
    leaves = [transposed(torch.ones(2, 3)).requires_grad_() for _ in range(3)]
    all_reduce_(leaves)
    assert all(leaf.tolist() == [[3.0] * 3] * 2 and leaf.is_leaf for leaf in leaves)


def each_gpu() -> list[torch.device]:
    """Return every GPU once: distinct devices where there are several."""
    return [torch.device("cuda", index) for index in range(cuda_count())]


on_gpus = pytest.mark.parametrize("devices", [each_gpu, lambda: [torch.device("cuda", 0)] * 3], ids=["each", "thrice"])


@pytest.mark.gpu
@every_algorithm
@on_gpus
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.int64], ids=str)
def test_on_gpus_it_is_torchs_reduce_add(
    all_reduce_: AllReduce, devices: Callable[[], list[torch.device]], dtype: torch.dtype
) -> None:
    """Sums of 1,000,003 whole numbers are exact; no number of devices from 2 to 8 divides 1,000,003."""
    before = whole_numbers((1_000_003,), len(devices()), 0, dtype)
    tensors = [values.to(device) for values, device in zip(before, devices(), strict=True)]
    expected = comm.reduce_add([tensor.clone() for tensor in tensors], destination=0)
    all_reduce_(tensors)
    assert [tensor.device for tensor in tensors] == devices()
    assert all(torch.equal(tensor.to(expected.device), expected) for tensor in tensors)


@pytest.mark.gpu
@every_algorithm
@on_gpus
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_on_gpus_sums_pass_the_checks_of_cpu_devices(
    all_reduce_: AllReduce, devices: Callable[[], list[torch.device]], dtype: torch.dtype
) -> None:
    before = reals(7 * 11, len(devices()), 0, dtype)
    tensors = [transposed(values.view(7, -1).to(device)) for values, device in zip(before, devices(), strict=True)]
    assert all_reduce_sums(all_reduce_, tensors) == RIGHT
    assert all_reduce_keeps_tensors_apart(all_reduce_, tensors) == RIGHT


@pytest.mark.gpu
@every_algorithm
@on_gpus
def test_on_gpus_the_exchange_waits_for_queued_work(
    all_reduce_: AllReduce, devices: Callable[[], list[torch.device]]
) -> None:
    """Every device's tensor is still being computed when the exchange is called."""
    n = 4096
    factors = [torch.ones(n, n, device=device) for device in devices()]
    tensors = [factor @ factor for factor in factors]
    all_reduce_(tensors)
    assert all((tensor == n * len(tensors)).all() for tensor in tensors)


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


def test_tensors_that_do_not_fit_are_reported() -> None:
    with pytest.raises(ValueError, match=r"tensor 1 is .* needs equal shapes and dtypes on every device"):
        reduce_scatter([torch.zeros(2), torch.zeros(3)])
    for other in (torch.zeros(1, 2), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(
            ValueError, match=r"shard 1 is .* an all_gather needs vectors of one dtype, as reduce_scatter"
        ):
            all_gather([torch.zeros(2), other])


def tree_links(i: int, k: int) -> int:
    """Return how many links device i has in the binomial tree; a device's parent is its number without the lowest 1."""
    return sum((child & (child - 1) == i) + (child == i) for child in range(1, k))


SENT: dict[str, Callable[[int, int, int], int]] = {
    "naive": lambda i, n, k: n * (k - 1 if i == 0 else 1),
    "tree": lambda i, n, k: n * tree_links(i, k),
    "ring": lambda i, n, k: 2 * n - chunk(i, n, k) - chunk(i + 1, n, k),
    "sharded": lambda i, n, k: n + (k - 2) * chunk(i, n, k),
}
RECEIVED = SENT | {"ring": lambda i, n, k: 2 * n - chunk(i - 1, n, k) - chunk(i, n, k)}
SENT["bucketed"], RECEIVED["bucketed"] = SENT["ring"], RECEIVED["ring"]


@pytest.mark.parametrize("name", ALL_REDUCE)
@given(k=world_sizes, n=st.integers(0, 20), dtype=st.sampled_from(DTYPES))
def test_the_traffic_is_the_documented_one(name: str, k: int, n: int, dtype: torch.dtype) -> None:
    """K need not divide the tensor; one device alone sends nothing."""
    tensors = [torch.zeros(n, dtype=dtype) for _ in range(k)]
    sent, received = traffic_of(lambda: ALL_REDUCE[name](tensors), k)
    assert sent == [dtype.itemsize * SENT[name](i, n, k) if k > 1 else 0 for i in range(k)]
    assert received == [dtype.itemsize * RECEIVED[name](i, n, k) if k > 1 else 0 for i in range(k)]


def messages_of(all_reduce_: AllReduce, k: int) -> dict[tuple[int, int], int]:
    """Return how often each link is used."""
    with count_traffic() as traffic:
        all_reduce_([torch.zeros(1) for _ in range(k)])
    return dict(traffic.link_messages)


@pytest.mark.parametrize("k", range(2, 9))
def test_links_and_messages_are_those_of_the_algorithm(k: int) -> None:
    """In the tree no device has more than ceil(log2 k) links."""
    others = range(1, k)
    assert messages_of(naive.naive_, k) == {link: 1 for i in others for link in ((0, i), (i, 0))}
    assert messages_of(ring.ring_, k) == {(i, (i + 1) % k): 2 * (k - 1) for i in range(k)}
    assert messages_of(sharded.sharded_, k) == {(i, j): 2 for i in range(k) for j in range(k) if i != j}
    edges = messages_of(tree.tree_, k)
    assert edges == {link: 1 for i in others for link in ((i & (i - 1), i), (i, i & (i - 1)))}
    assert max(sum(source == i for source, _ in edges) for i in range(k)) == (k - 1).bit_length()


@pytest.mark.parametrize("module", [naive, tree, ring, sharded], ids=lambda module: module.__name__.split(".")[-1])
def test_all_values_move_by_the_counted_function(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `send_` no value moves, so no transfer is missing from the count."""
    monkeypatch.setattr(module, "send_", lambda *_, **__: None)
    before = reals(7, 5, 0, torch.float64)
    tensors = [values.clone() for values in before]
    ALL_REDUCE[module.__name__.split(".")[-1]](tensors)
    assert all(torch.equal(tensor, values) for tensor, values in zip(tensors, before, strict=True))


def test_the_halves_move_values_by_the_counted_function_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `send_` delivers zeros, a device has its own part only."""
    monkeypatch.setattr(sharded, "send_", lambda values, into, *, accumulate=False, **_: accumulate or into.zero_())
    before = [torch.tensor([1.0, 2.0, 3.0]) + 10 * rank for rank in range(3)]
    shards = reduce_scatter(before)
    assert [shard.tolist() for shard in shards] == [[1.0], [12.0], [23.0]]
    assert [whole.tolist() for whole in all_gather(shards)] == [[1.0, 0, 0], [0, 12.0, 0], [0, 0, 23.0]]


def test_nested_counts_both_count_and_an_error_ends_them() -> None:
    pair = [torch.zeros(3), torch.zeros(3)]
    with count_traffic() as outer:
        naive.naive_(pair)
        with pytest.raises(RuntimeError, match="stop"), count_traffic() as inner:
            naive.naive_(pair)
            raise RuntimeError("stop")
    naive.naive_(pair)
    assert (outer.sent_bytes(1), inner.sent_bytes(1)) == (24, 12)


def test_threads_count_their_own_transfers() -> None:
    both_count = threading.Barrier(2)

    def exchange(k: int) -> int:
        with count_traffic() as traffic:
            both_count.wait(timeout=60)
            naive.naive_([torch.zeros(1) for _ in range(k)])
            both_count.wait(timeout=60)
        return traffic.received_bytes(0)

    with count_traffic() as here, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(exchange, (2, 3))) == [4, 8]
    assert not here.link_bytes or here.received_bytes(0) == 12  # where threads inherit the context, an option of Python


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
