"""Splitting minibatches over devices and putting them together again."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference.per_device import get_params
from reference.scatter import (
    CHUNK_RULES,
    balanced_sizes,
    chunk_sizes,
    floor_sizes,
    gather,
    scatter,
    shard_bounds,
    split_batch,
    weighted_sizes,
)
from tests.support.strategies import CPU

samples = st.integers(0, 200)
devices = st.integers(1, 40)
weight_lists = st.lists(st.floats(0, 1e6) | st.integers(0, 9), min_size=1, max_size=12).filter(any)


@pytest.mark.parametrize(
    ("rule", "sizes"),
    [("torch", [2] * 5), ("mxnet_older", [1] * 7 + [3]), ("mxnet_newer", [2, 2] + [1] * 6)],
)
def test_chunk_rules_split_10_samples_over_8_devices_as_the_documents_do(rule: str, sizes: list[int]) -> None:
    """Only torch's rule leaves devices idle while there are enough samples for all."""
    assert CHUNK_RULES[rule](10, 8) == sizes


@given(n=samples, k=devices)
def test_chunk_sizes_are_torchs(n: int, k: int) -> None:
    assert chunk_sizes(n, k) == [len(part) for part in torch.arange(n).chunk(k)]


@given(n=samples, k=devices)
def test_balanced_sizes_are_numpys(n: int, k: int) -> None:
    assert balanced_sizes(n, k) == [len(part) for part in numpy.array_split(numpy.arange(n), k)]


@given(n=samples, k=devices)
def test_floor_sizes_leave_the_remainder_to_the_last_device(n: int, k: int) -> None:
    sizes = floor_sizes(n, k)
    assert sizes == [n // k] * (k - 1) + [n // k + n % k]
    assert sum(sizes) == n


@given(n=samples, weights=weight_lists)
def test_weighted_sizes_are_the_exact_shares_to_less_than_a_sample(n: int, weights: list[float]) -> None:
    """They sum to n; a device of weight 0 gets nothing; more weight never means fewer samples."""
    sizes, exact = weighted_sizes(n, weights), [Fraction(weight) for weight in weights]
    assert sum(sizes) == n
    for size, weight in zip(sizes, exact, strict=True):
        assert abs(size - n * weight / sum(exact)) < 1
        assert weight > 0 or size == 0
    ordered = [size for _, size in sorted(zip(exact, sizes, strict=True))]
    assert ordered == sorted(sizes)


@given(n=samples, k=devices, weight=st.floats(1e-300, 1e300))
def test_equal_weights_are_the_balanced_rule(n: int, k: int, weight: float) -> None:
    """Ties go to the first devices, at any scale of the weights."""
    assert weighted_sizes(n, [weight] * k) == balanced_sizes(n, k)


@pytest.mark.parametrize(
    ("n", "weights", "sizes"),
    [
        (10, [1, 1, 1], [4, 3, 3]),
        (8, [1, 3], [2, 6]),
        (7, [0, 2, 0, 1], [0, 5, 0, 2]),
        (1, [0.1, 0.2], [0, 1]),
        (10, [0.1] * 10, [1] * 10),
        (2, [2**-1074, 1e308], [0, 2]),
        (5, [1e308, 1e308], [3, 2]),
    ],
)
def test_weighted_sizes_by_example(n: int, weights: list[float], sizes: list[int]) -> None:
    """Ten tenths do not add up to 1 in floating point; the sum of the last weights overflows."""
    assert weighted_sizes(n, weights) == sizes


@given(n=samples, k=devices)
def test_shard_bounds_cover_every_sample_once_and_in_order(n: int, k: int) -> None:
    whole = list(range(n))
    assert [i for rank in range(k) for i in whole[shard_bounds(n, k, rank)]] == whole


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_gather_undoes_scatter_with_any_sizes(sizes: list[int]) -> None:
    """Any device may get nothing."""
    whole = torch.arange(2 * sum(sizes)).reshape(-1, 2)
    X_shards, y_shards = split_batch(whole, whole[:, 0], [CPU] * len(sizes), sizes)
    assert [len(shard) for shard in X_shards] == [len(shard) for shard in y_shards] == sizes
    assert torch.equal(gather(X_shards, CPU), whole)
    assert torch.equal(gather(y_shards, CPU), whole[:, 0])


@given(n=st.integers(1, 20), k=devices)
def test_a_nest_is_split_as_its_tensors_are(n: int, k: int) -> None:
    rows = torch.arange(2 * n).reshape(n, 2)
    X = {"tokens": rows, "more": (rows[:, 0], [rows[:, 1]])}
    shards, labels = split_batch(X, rows[:, 0], [CPU] * k)
    assert [len(shard["tokens"]) for shard in shards] == [len(part) for part in labels] == chunk_sizes(n, k)
    for shard, part in zip(shards, labels, strict=True):
        assert torch.equal(shard["tokens"][:, 0], part)
        assert torch.equal(shard["more"][0], part)
        assert torch.equal(shard["more"][1][0], part + 1)


def test_gradients_pass_through_a_scatter_with_sizes() -> None:
    x = torch.arange(5.0, requires_grad=True)
    shards = scatter(x, [CPU] * 3, [4, 0, 1])
    (grad,) = torch.autograd.grad(gather([(rank + 1) * shard for rank, shard in enumerate(shards)], CPU).sum(), x)
    assert grad.tolist() == [1.0, 1.0, 1.0, 1.0, 3.0]


def test_get_params_are_leaf_clones_without_a_gradient() -> None:
    """Without the clone a "copy" on the device of the original would be the original."""
    master = torch.ones(2)
    (copy,) = get_params([master], CPU)
    with torch.no_grad():
        copy.zero_()
    assert copy.is_leaf
    assert copy.requires_grad
    assert copy.grad is None
    assert master.tolist() == [1.0, 1.0]
    assert not master.requires_grad


@pytest.mark.parametrize("weights", [[1, -0.5], [float("nan"), 1], [float("inf"), 1], [0, 0]])
def test_invalid_weights_are_reported(weights: list[float]) -> None:
    message = f"weights are {weights}: they must be finite and at least 0, and one above 0"
    with pytest.raises(ValueError, match=re.escape(message)):
        weighted_sizes(5, weights)


@pytest.mark.parametrize("sizes", [*CHUNK_RULES.values(), lambda n, k: weighted_sizes(n, [1.0] * k)])
@pytest.mark.parametrize(("n", "k"), [(-1, 2), (3, 0)])
def test_every_rule_reports_impossible_splits(sizes: Callable[[int, int], list[int]], n: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"cannot split {n} samples over {k} devices"):
        sizes(n, k)


@pytest.mark.parametrize("sizes", [[1, 1], [2, 2], [4, -1], []])
def test_sizes_that_do_not_sum_to_the_samples_are_reported(sizes: list[int]) -> None:
    message = f"sizes are {sizes} for 3 samples: they must be at least 0 and sum to the samples"
    with pytest.raises(ValueError, match=re.escape(message)):
        scatter(torch.zeros(3), [CPU] * 2, sizes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scatter(torch.zeros(3), []), "devices is empty: name at least one device to scatter to"),
        (
            lambda: scatter(torch.tensor(1.0), [CPU]),
            "cannot scatter a tensor without axes: its first axis must be the samples",
        ),
        (
            lambda: scatter(torch.zeros(3), [CPU] * 2, [1, 1, 1]),
            r"sizes are \[1, 1, 1\] for 2 devices: give at most one size per device",
        ),
        (
            lambda: split_batch(torch.zeros(3, 1), torch.zeros(2), [CPU]),
            "X has 3 samples and y has 2: every sample needs one label",
        ),
        (
            lambda: scatter({"a": torch.zeros(3), "b": torch.zeros(2)}, [CPU]),
            r"the tensors of a minibatch have \[2, 3\] samples: the first axis of each must be the samples",
        ),
        (lambda: gather([], CPU), "there are no shards to gather"),
        (lambda: shard_bounds(10, 2, -1), "rank is -1 in a world of 2"),
        (lambda: shard_bounds(10, 2, 2), "rank is 2 in a world of 2"),
    ],
)
def test_bad_arguments_are_reported(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
