"""The bytes and messages of every all-reduce, device by device and link by link, and the counter itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference.all_reduce import ALL_REDUCE, AllReduce, naive, ring, sharded, tree
from reference.all_reduce.sharded import all_gather, reduce_scatter
from reference.all_reduce.traffic import count_traffic
from tests.support.collectives import DTYPES, chunk, reals, traffic_of
from tests.support.strategies import world_sizes


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
