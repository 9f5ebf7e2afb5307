"""The sum of one tensor per device, on every device, in place; the bytes it takes; many tensors in buckets.

`run` holds an algorithm to all that it owes, and wrong algorithms stand below to show that it would notice. Errors are
measured in exact fractions and held to the bound that `reference.all_reduce` derives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.cuda import comm, nccl

from reference.all_reduce import ALL_REDUCE, AllReduce, naive, ring, sharded, tree
from reference.all_reduce.bucketed import assign_buckets, bucketed_
from reference.all_reduce.sharded import all_gather, reduce_scatter
from reference.all_reduce.traffic import Traffic, count_traffic
from reference.sgd import sgd_
from suite.devices import cuda_count
from tests.strategies import seeds, world_sizes

Layout = Callable[[Tensor], Tensor]

every_algorithm = pytest.mark.parametrize("all_reduce_", ALL_REDUCE.values(), ids=ALL_REDUCE.keys())

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
# Eight numbers of at most 15 add up to at most 120, and int8 and bfloat16 hold every whole number up to there.
LARGEST = 15
STRANGER = 99


def plain(values: Tensor) -> Tensor:
    """Copy without gaps, last axis first in memory."""
    return values.clone(memory_format=torch.contiguous_format)


def transposed(values: Tensor) -> Tensor:
    """Copy with the axes the other way round in memory."""
    reversed_axes = list(range(values.ndim))[::-1]
    return plain(values.permute(reversed_axes)).permute(reversed_axes)


def gapped(values: Tensor) -> Tensor:
    """Copy with a number that is none of ours behind every element."""
    pairs = torch.full((*values.shape, 2), STRANGER, dtype=values.dtype)
    pairs[..., 0] = values
    return pairs[..., 0]


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
layouts = st.lists(st.sampled_from([plain, transposed, gapped]), min_size=8, max_size=8)


def whole_numbers(shape: Sequence[int], k: int, seed: int, dtype: torch.dtype) -> list[Tensor]:
    """Return k tensors of small whole numbers, exactly summable in every dtype and order."""
    generator = torch.Generator().manual_seed(seed)
    low = 0 if dtype is torch.uint8 else -LARGEST
    return [torch.randint(low, LARGEST + 1, tuple(shape), generator=generator).to(dtype) for _ in range(k)]


def reals(n: int, k: int, seed: int, dtype: torch.dtype) -> list[Tensor]:
    """Return k vectors of numbers of both signs, from 2^-4 to 2^4 in size."""
    generator = torch.Generator().manual_seed(seed)
    exponents, signs = torch.rand(2, k, n, generator=generator, dtype=torch.float64)
    return list((torch.sign(signs - 0.5) * 2 ** (8 * exponents - 4)).to(dtype))


def gamma(k: int, dtype: torch.dtype) -> Fraction:
    """Return what k - 1 additions may be off by, over the sum of absolute values: (k-1) u / (1 - (k-1) u)."""
    rounding = (k - 1) * Fraction(torch.finfo(dtype).eps) / 2
    return rounding / (1 - rounding)


def bits(tensor: Tensor) -> list[int]:
    """Return the bytes of the elements in logical order."""
    return plain(tensor.detach().cpu()).flatten().view(torch.uint8).tolist()


def run(all_reduce_: AllReduce, before: Sequence[Tensor], layouts: Sequence[Layout], *, exact: bool) -> None:
    """Reduce copies of ``before`` and hold the result to everything that an all-reduce owes."""
    tensors = [layout(values) for values, layout in zip(before, layouts, strict=False)]
    places = [(tensor.data_ptr(), tensor.stride()) for tensor in tensors]
    all_reduce_(list(tensors))
    assert [(tensor.data_ptr(), tensor.stride()) for tensor in tensors] == places, "not the caller's memory"
    for tensor, layout in zip(tensors, layouts, strict=False):
        if layout is gapped:
            gaps = tensor.as_strided(tensor.shape, tensor.stride(), 1)
            assert (gaps == STRANGER).all(), "written beside the tensor"
    assert all(bits(tensor) == bits(tensors[0]) for tensor in tensors), "copies differ"
    if tensors:
        results, terms = tensors[0].flatten().tolist(), torch.stack([values.flatten() for values in before]).T.tolist()
        for result, summands in zip(results, terms, strict=True):
            fractions = [Fraction(term) for term in summands]
            allowed = 0 if exact else gamma(len(before), before[0].dtype) * sum(map(abs, fractions))
            assert abs(Fraction(result) - sum(fractions)) <= allowed, "not the sum"


@every_algorithm
@given(k=st.integers(0, 8), shape=shapes, layouts=layouts, seed=seeds, dtype=st.sampled_from(DTYPES))
def test_exactly_summable_numbers_are_summed_exactly_in_the_callers_tensors(
    all_reduce_: AllReduce, k: int, shape: tuple[int, ...], layouts: list[Layout], seed: int, dtype: torch.dtype
) -> None:
    """Every dtype, any number of devices, empty and 0-dim shapes, strides that differ from device to device."""
    run(all_reduce_, whole_numbers(shape, k, seed, dtype), layouts, exact=True)


@every_algorithm
@given(k=world_sizes, n=st.integers(1, 9), layouts=layouts, seed=seeds, dtype=st.sampled_from(FLOATS))
def test_other_numbers_are_summed_within_the_error_bound(
    all_reduce_: AllReduce, k: int, n: int, layouts: list[Layout], seed: int, dtype: torch.dtype
) -> None:
    """That of k - 1 additions in the tensor's own dtype, in any order, and one result for everybody."""
    run(all_reduce_, reals(n, k, seed, dtype), layouts, exact=False)


def rebinding(tensors: Sequence[Tensor]) -> None:
    """The book's: the copies go into the slots of the list (d2l-ai/d2l-zh#955)."""
    slots: Any = tensors
    for tensor in tensors[1:]:
        slots[0][:] += tensor
    for i in range(1, len(tensors)):
        slots[i] = tensors[0].clone()


def sharing(tensors: Sequence[Tensor]) -> None:
    """All devices' tensors become one."""
    naive.naive_(tensors)
    for tensor in tensors:
        tensor.set_(tensors[0])  # type: ignore[call-overload]


def own_order(tensors: Sequence[Tensor]) -> None:
    """Each device adds the others' to its own."""
    sums = [sum(tensors[i:] + tensors[:i]) for i in range(len(tensors))]  # type: ignore[operator]
    for tensor, total in zip(tensors, sums, strict=True):
        tensor.copy_(total)


def without_remainder(tensors: Sequence[Tensor]) -> None:
    """Chunks of n // k elements, and no chunk for the rest."""
    k = len(tensors)
    naive.naive_([tensor[: len(tensor) // k * k] for tensor in tensors])


def without_the_last(tensors: Sequence[Tensor]) -> None:
    """A ring that ends one step early."""
    naive.naive_(tensors[:-1])
    tensors[-1].copy_(tensors[0])


def first_counted_twice(tensors: Sequence[Tensor]) -> None:
    """A ring that goes on one step too long."""
    first = tensors[0].clone()
    naive.naive_(tensors)
    for tensor in tensors:
        tensor += first


def averaging(tensors: Sequence[Tensor]) -> None:
    """What DistributedDataParallel does."""
    naive.naive_(tensors)
    for tensor in tensors:
        tensor /= len(tensors)


def through_half(tensors: Sequence[Tensor]) -> None:
    """Half the bytes and a quarter of the digits."""
    halves = [tensor.half() for tensor in tensors]
    naive.naive_(halves)
    for tensor, half in zip(tensors, halves, strict=True):
        tensor.copy_(half)


def blind_to_strides(tensors: Sequence[Tensor]) -> None:
    """Takes the elements to lie side by side."""
    naive.naive_([tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors])


@pytest.mark.parametrize(
    ("wrong", "layout", "noticed"),
    [
        (rebinding, plain, "copies differ"),
        (sharing, plain, "not the caller's memory"),
        (own_order, plain, "copies differ"),
        (without_remainder, plain, "copies differ"),
        (without_the_last, plain, "not the sum"),
        (first_counted_twice, plain, "not the sum"),
        (averaging, plain, "not the sum"),
        (through_half, plain, "not the sum"),
        (blind_to_strides, gapped, "written beside the tensor"),
    ],
)
def test_a_wrong_algorithm_is_noticed(wrong: AllReduce, layout: Layout, noticed: str) -> None:
    """On three devices with seven numbers; the right one passes the same."""
    before = reals(7, 3, 0, torch.float32)
    run(naive.naive_, before, [layout] * 3, exact=False)
    with pytest.raises(AssertionError, match=noticed):
        run(wrong, before, [layout] * 3, exact=False)


@every_algorithm
def test_two_devices_end_with_the_notebooks_sum(all_reduce_: AllReduce) -> None:
    """[1, 1] and [2, 2] become [3, 3] and [3, 3]."""
    tensors = [torch.ones(1, 2), torch.full((1, 2), 2.0)]
    all_reduce_(tensors)
    assert [tensor.tolist() for tensor in tensors] == [[[3.0, 3.0]]] * 2


def gradients_after(all_reduce_: AllReduce) -> list[float]:
    """Return three devices' gradients 1, 2, 3 after an all-reduce through a list made for the call."""
    params = [torch.zeros(1, requires_grad=True) for _ in range(3)]
    for value, param in enumerate(params, start=1):
        param.grad = torch.tensor([float(value)])
    all_reduce_([param.grad for param in params if param.grad is not None])
    return [param.grad.item() for param in params if param.grad is not None]


@every_algorithm
def test_the_sum_arrives_through_a_temporary_list(all_reduce_: AllReduce) -> None:
    """1, 2, 3 become 6, 6, 6 in the parameters' own gradients."""
    assert gradients_after(all_reduce_) == [6.0, 6.0, 6.0]


def test_the_books_all_reduce_would_be_caught() -> None:
    """Rebinding the slots leaves the gradients at 6, 2, 3."""
    assert gradients_after(rebinding) == [6.0, 2.0, 3.0]


@every_algorithm
def test_parameters_can_be_reduced_outside_no_grad(all_reduce_: AllReduce) -> None:
    """The exchange is not part of any graph, so leaves that require a gradient may take part."""
    leaves = [transposed(torch.ones(2, 3)).requires_grad_() for _ in range(3)]
    all_reduce_(leaves)
    assert all(leaf.tolist() == [[3.0] * 3] * 2 and leaf.is_leaf for leaf in leaves)


@every_algorithm
def test_whole_numbers_wrap_around(all_reduce_: AllReduce) -> None:
    """100 + 100 = 200 - 256, as in any sum of int8."""
    tensors = [torch.tensor([100], dtype=torch.int8) for _ in range(2)]
    all_reduce_(tensors)
    assert [tensor.item() for tensor in tensors] == [-56, -56]


@every_algorithm
@pytest.mark.parametrize("other", [torch.zeros(3), torch.zeros(2, dtype=torch.float64)], ids=["shape", "dtype"])
def test_unequal_tensors_are_reported_and_left_alone(all_reduce_: AllReduce, other: Tensor) -> None:
    """Broadcasting or casting would be silently wrong."""
    first = torch.ones(2)
    with pytest.raises(ValueError, match=r"tensor 1 is .* needs equal shapes and dtypes on every device"):
        all_reduce_([first, other])
    assert first.tolist() == [1.0, 1.0]


@every_algorithm
def test_shared_memory_is_reported_and_left_alone(all_reduce_: AllReduce) -> None:
    """The same tensor twice, or views with an element in common, which an algorithm would count twice."""
    buffer = torch.ones(5)
    for first, second in ((buffer, buffer), (buffer[:3], buffer[2:]), (buffer[2:], buffer[:3])):
        # Bucketed names the devices, the others one tensor each.
        with pytest.raises(ValueError, match=r"(?:\D*0){1,2} and (?:\D*[02]){1,2}.* overlap in memory: .* clone\(\)"):
            all_reduce_([first, torch.ones(len(first)), second])
    assert buffer.tolist() == [1.0] * 5


@every_algorithm
def test_views_that_lie_side_by_side_are_no_shared_memory(all_reduce_: AllReduce) -> None:
    """The rows of one matrix may be the devices' tensors."""
    matrix = torch.arange(6.0).view(3, 2)
    all_reduce_(list(matrix))
    assert matrix.tolist() == [[6.0, 9.0]] * 3


@every_algorithm
def test_an_expanded_tensor_is_reported_and_the_others_left_alone(all_reduce_: AllReduce) -> None:
    """Its elements are one place in memory; torch would refuse to write there, but only after the first sum."""
    first = torch.ones(3)
    with pytest.raises(ValueError, match=r"is expanded, shape \(3,\) with strides \(0,\): .* contiguous\(\)"):
        all_reduce_([first, torch.ones(1).expand(3)])
    assert first.tolist() == [1.0] * 3


@every_algorithm
def test_a_sparse_tensor_is_reported(all_reduce_: AllReduce) -> None:
    """As an embedding's gradient may be."""
    with pytest.raises(ValueError, match=r"tensor 0.* has layout torch.sparse_coo: .* to_dense\(\)"):
        all_reduce_([torch.eye(2).to_sparse(), torch.eye(2).to_sparse()])


def traffic_of(exchange: Callable[[], object], k: int) -> tuple[list[int], list[int]]:
    """Return the bytes that each of k devices sends and receives."""
    with count_traffic() as traffic:
        exchange()
    return [traffic.sent_bytes(i) for i in range(k)], [traffic.received_bytes(i) for i in range(k)]


def chunk(i: int, n: int, k: int) -> int:
    """Return how many of n elements chunk i (mod k) has: the first n mod k have one more."""
    return n // k + (i % k < n % k)


def tree_links(i: int, k: int) -> int:
    """Count the links of device i in the binomial tree, where a device's parent is its number without the lowest 1."""
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
    """Whether k divides the tensor or not; one device alone sends nothing."""
    tensors = [torch.zeros(n, dtype=dtype) for _ in range(k)]
    sent, received = traffic_of(lambda: ALL_REDUCE[name](tensors), k)
    assert sent == [dtype.itemsize * SENT[name](i, n, k) if k > 1 else 0 for i in range(k)]
    assert received == [dtype.itemsize * RECEIVED[name](i, n, k) if k > 1 else 0 for i in range(k)]


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize(("name", "least"), [("ring", True), ("sharded", True), ("bucketed", True), ("naive", False)])
def test_ring_and_sharded_send_the_least_where_k_divides_the_tensor(name: str, least: bool, k: int) -> None:
    """2 (k - 1) / k n on every device; naive needs as little on two devices only."""
    tensors = [torch.zeros(3 * k, dtype=torch.float64) for _ in range(k)]
    figure = [2 * (k - 1) * 3 * 8] * k
    assert (traffic_of(lambda: ALL_REDUCE[name](tensors), k) == (figure, figure)) is (least or k <= 2)


def messages_of(all_reduce_: AllReduce, k: int) -> dict[tuple[int, int], int]:
    """Return how often each link is used."""
    with count_traffic() as traffic:
        all_reduce_([torch.zeros(1) for _ in range(k)])
    return dict(traffic.link_messages)


@pytest.mark.parametrize("k", range(2, 9))
def test_links_and_messages_are_those_of_the_algorithm(k: int) -> None:
    """The ring's neighbours 2 (k - 1) times; all pairs twice; in the tree nobody has more than ceil(log2 k) links."""
    others = range(1, k)
    assert messages_of(naive.naive_, k) == {link: 1 for i in others for link in ((0, i), (i, 0))}
    assert messages_of(ring.ring_, k) == {(i, (i + 1) % k): 2 * (k - 1) for i in range(k)}
    assert messages_of(sharded.sharded_, k) == {(i, j): 2 for i in range(k) for j in range(k) if i != j}
    edges = messages_of(tree.tree_, k)
    assert edges == {link: 1 for i in others for link in ((i & (i - 1), i), (i, i & (i - 1)))}
    assert max(sum(source == i for source, _ in edges) for i in range(k)) == (k - 1).bit_length()


@pytest.mark.parametrize("module", [naive, tree, ring, sharded], ids=lambda module: module.__name__.split(".")[-1])
def test_nothing_arrives_when_the_wire_is_cut(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """So no value takes a way that is not counted."""
    monkeypatch.setattr(module, "send_", lambda *_, **__: None)
    before = reals(7, 5, 0, torch.float64)
    tensors = [values.clone() for values in before]
    ALL_REDUCE[module.__name__.split(".")[-1]](tensors)
    assert all(torch.equal(tensor, values) for tensor, values in zip(tensors, before, strict=True))


def test_the_halves_go_by_the_wire_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it delivers zeros, a device has its own part and nothing else."""
    monkeypatch.setattr(sharded, "send_", lambda values, into, *, accumulate=False, **_: accumulate or into.zero_())
    before = [torch.tensor([1.0, 2.0, 3.0]) + 10 * rank for rank in range(3)]
    shards = reduce_scatter(before)
    assert [shard.tolist() for shard in shards] == [[1.0], [12.0], [23.0]]
    assert [whole.tolist() for whole in all_gather(shards)] == [[1.0, 0, 0], [0, 12.0, 0], [0, 0, 23.0]]


def test_nested_counts_both_count_and_an_error_ends_them() -> None:
    """The inner one starts from nothing; after the block nothing is counted any more."""
    pair = [torch.zeros(3), torch.zeros(3)]
    with count_traffic() as outer:
        naive.naive_(pair)
        with pytest.raises(RuntimeError, match="stop"), count_traffic() as inner:
            naive.naive_(pair)
            raise RuntimeError("stop")
    naive.naive_(pair)
    assert (outer.sent_bytes(1), inner.sent_bytes(1)) == (24, 12)


def test_threads_count_their_own_transfers() -> None:
    """Two counts at the same time, one of two devices and one of three."""
    both_count = threading.Barrier(2)
    counted: dict[int, Traffic] = {}

    def exchange(k: int) -> None:
        with count_traffic() as traffic:
            both_count.wait(timeout=60)
            naive.naive_([torch.zeros(1) for _ in range(k)])
            both_count.wait(timeout=60)
        counted[k] = traffic

    with count_traffic() as here:
        threads = [threading.Thread(target=exchange, args=(k,)) for k in (2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [counted[k].received_bytes(0) for k in (2, 3)] == [4, 8]
    assert (
        not here.link_bytes or here.received_bytes(0) == 12
    )  # where threads inherit the context, as Python can be told


@given(k=st.integers(0, 8), shape=shapes, layouts=layouts, seed=seeds, dtype=st.sampled_from(DTYPES))
def test_reduce_scatter_and_all_gather_are_the_halves_of_an_all_reduce(
    k: int, shape: tuple[int, ...], layouts: list[Layout], seed: int, dtype: torch.dtype
) -> None:
    """Shard i of the sum on device i, in new memory, then all shards everywhere; sharded's traffic in two parts."""
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
    """As other rules cut them: 3, 0 and 1."""
    gathered = all_gather([torch.tensor([1, 2, 3]), torch.tensor([], dtype=torch.int64), torch.tensor([4])])
    assert [whole.tolist() for whole in gathered] == [[1, 2, 3, 4]] * 3


@pytest.mark.parametrize("other", [torch.zeros(1, 2), torch.zeros(2, dtype=torch.int64)], ids=["matrix", "dtype"])
def test_all_gather_reports_what_is_no_shard(other: Tensor) -> None:
    """What reduce_scatter returns is flat."""
    with pytest.raises(ValueError, match=r"shard 1 is .* an all_gather needs vectors of one dtype, as reduce_scatter"):
        all_gather([torch.zeros(2), other])


def test_reduce_scatter_reports_unequal_tensors() -> None:
    """As every algorithm does."""
    with pytest.raises(ValueError, match=r"tensor 1 is .* needs equal shapes and dtypes on every device"):
        reduce_scatter([torch.zeros(2), torch.zeros(3)])


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
def test_buckets_change_nothing_about_the_sums(
    k: int, kinds: list[Any], bucket_bytes: int, layouts: list[Layout], seed: int, name: str
) -> None:
    """Tensor j of every device ends as the sum of all tensors j, whatever is in a bucket and whoever reduces it."""
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
    """Every tensor once, in order; a new bucket only when the dtype's last one has no room."""
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


@pytest.mark.parametrize(
    ("sizes", "buckets"),
    [
        ([3, 3, 3], [[0, 1], [2]]),
        ([6, 1], [[0], [1]]),
        ([3, 9, 3], [[0], [1], [2]]),
        ([0, 3, 0, 3, 0], [[0, 1, 2, 3, 4]]),
        ([], []),
    ],
    ids=["full", "exact", "too large", "empty tensors", "nothing"],
)
def test_six_numbers_fit_a_bucket_of_24_bytes(sizes: list[int], buckets: list[list[int]]) -> None:
    """After a tensor that is larger than a bucket the next one starts afresh."""
    assert assign_buckets([torch.zeros(size) for size in sizes], 24) == buckets


def test_a_bucket_is_one_exchange_and_no_dtype_passes_through_another() -> None:
    """Four tensors, two dtypes: two buckets, and a whole number that float64 cannot hold."""
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
    """A large one is not copied; those that share a bucket are."""
    per_device = [[torch.ones(9), torch.ones(3), torch.ones(3)] for _ in range(2)]
    reduced: list[Tensor] = []
    bucketed_(per_device, 24, reduced.extend)
    assert [any(tensor is mine for mine in per_device[0] + per_device[1]) for tensor in reduced] == [
        True,
        True,
        False,
        False,
    ]


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
    """A bucket alone in front would otherwise have been summed already."""
    first = [torch.ones(2), torch.ones(3)]
    with pytest.raises(ValueError, match=message):
        bucketed_([first, second], bucket_bytes=1)
    assert [tensor.tolist() for tensor in first] == [[1.0] * 2, [1.0] * 3]


def test_a_tensor_that_stands_twice_in_a_devices_list_is_reported() -> None:
    """Tied weights: in two buckets it would be summed twice."""
    tied = torch.ones(2)
    with pytest.raises(ValueError, match="tensor 0 of device 0 and tensor 1 of device 0 overlap in memory"):
        bucketed_([[tied, tied], [torch.ones(2), torch.ones(2)]], bucket_bytes=1)
    assert tied.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("per_device", [[], [[]], [[torch.ones(1)], [torch.ones(1)]]], ids=len)
def test_a_bucket_without_room_is_reported(per_device: list[list[Tensor]]) -> None:
    """Even when there is nothing to put into it."""
    with pytest.raises(ValueError, match="bucket_bytes is 0: a bucket must hold at least 1 byte"):
        bucketed_(per_device, bucket_bytes=0)


def each_gpu() -> list[torch.device]:
    """Every GPU once: distinct devices where there are several."""
    return [torch.device("cuda", index) for index in range(cuda_count())]


def first_gpu_thrice() -> list[torch.device]:
    """One GPU as three devices."""
    return [torch.device("cuda", 0)] * 3


on_gpus = pytest.mark.parametrize("devices", [each_gpu, first_gpu_thrice])


@pytest.mark.gpu
@every_algorithm
@on_gpus
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.int64], ids=str)
def test_on_gpus_it_is_torchs_reduce_add(
    all_reduce_: AllReduce, devices: Callable[[], list[torch.device]], dtype: torch.dtype
) -> None:
    """Exactly, on whole numbers; 1,000,003 of them, which no number of devices from 2 to 8 divides."""
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
def test_on_gpus_everything_owed_is_kept(
    all_reduce_: AllReduce, devices: Callable[[], list[torch.device]], dtype: torch.dtype
) -> None:
    """The same properties as on CPU devices, the error bound among them."""

    def on(device: torch.device) -> Layout:
        return lambda values: transposed(values.view(7, -1).to(device))

    before = reals(7 * 11, len(devices()), 0, dtype)
    run(all_reduce_, before, [on(device) for device in devices()], exact=False)


@pytest.mark.gpu
@every_algorithm
@on_gpus
def test_on_gpus_work_still_queued_is_waited_for(
    all_reduce_: AllReduce, devices: Callable[[], list[torch.device]]
) -> None:
    """Neither side synchronises: every device's tensor is still being computed when the exchange is asked for."""
    n = 4096
    factors = [torch.ones(n, n, device=device) for device in devices()]
    tensors = [factor @ factor for factor in factors]
    all_reduce_(tensors)
    assert all((tensor == n * len(tensors)).all() for tensor in tensors)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@every_algorithm
def test_on_several_gpus_it_agrees_with_nccl(all_reduce_: AllReduce, dtype: torch.dtype) -> None:
    """Both are within the bound of the true sum, so within twice the bound of each other."""
    devices = each_gpu()
    if len(devices) < 2:
        pytest.skip(f"NCCL needs 2 GPUs, each one once; here there is {len(devices)}")
    before = reals(1_000_003, len(devices), 0, dtype)
    ours = [values.to(device) for values, device in zip(before, devices, strict=True)]
    theirs = [tensor.clone() for tensor in ours]
    nccl.all_reduce(theirs)
    all_reduce_(ours)
    # The sum of k absolute values below 2^4 is itself rounded k - 1 times in float64, which the last factor covers.
    sizes = torch.stack([values.double().abs() for values in before]).sum(0) * (1 + 1e-12)
    allowed = 2 * float(gamma(len(devices), dtype)) * sizes
    for mine, yours in zip(ours, theirs, strict=True):
        assert torch.equal(mine.cpu(), ours[0].cpu())
        assert ((mine.cpu().double() - yours.cpu().double()).abs() <= allowed).all()


def test_sgd_divides_the_summed_gradient_by_the_batch_and_clears_it() -> None:
    """P - lr * grad / batch: 1 - 0.5 * 8 / 4 = 0."""
    param = nn.Parameter(torch.ones(2))
    param.grad = torch.full((2,), 8.0)
    sgd_([param], lr=0.5, batch_size=4)
    assert param.tolist() == [0.0, 0.0]
    assert param.grad is None


def test_sgd_leaves_a_parameter_without_gradient_alone() -> None:
    """An unused parameter is no error."""
    param = nn.Parameter(torch.ones(2))
    sgd_([param], lr=0.5, batch_size=4)
    assert param.tolist() == [1.0, 1.0]


def test_sgd_reports_an_empty_batch() -> None:
    """There is nothing to divide by."""
    with pytest.raises(ValueError, match="batch_size is 0: a step needs at least one sample"):
        sgd_([], lr=0.1, batch_size=0)
