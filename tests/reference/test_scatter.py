"""Splitting minibatches, putting them together, and running something on every device."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from fractions import Fraction

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference.replicas import PerDevice, get_params
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
from tests.support.project import REPOSITORY
from tests.support.strategies import CPU, world_sizes

samples = st.integers(0, 200)
devices = st.integers(1, 40)
rules = pytest.mark.parametrize("rule", CHUNK_RULES)
weight_lists = st.lists(st.floats(0, 1e6) | st.integers(0, 9), min_size=1, max_size=12).filter(any)


@pytest.mark.parametrize(
    ("n", "k", "sizes"),
    [
        (30, 1, [30]),
        (10, 1, [10]),
        (30, 2, [15, 15]),
        (10, 2, [5, 5]),
        (30, 3, [10, 10, 10]),
        (10, 3, [4, 4, 2]),
        (30, 8, [4, 4, 4, 4, 4, 4, 4, 2]),
        (10, 8, [2, 2, 2, 2, 2]),
        (0, 3, [0, 0, 0]),
    ],
)
def test_chunk_sizes_are_the_tutorials_table(n: int, k: int, sizes: list[int]) -> None:
    """Batches of 30 and 10 over 1, 2, 3 and 8 devices; with 10 over 8 three devices are idle."""
    assert chunk_sizes(n, k) == sizes


@pytest.mark.parametrize(
    ("n", "k", "torchs", "older", "newer"),
    [
        (30, 8, [4] * 7 + [2], [3] * 7 + [9], [4] * 6 + [3] * 2),
        (10, 3, [4, 4, 2], [3, 3, 4], [4, 3, 3]),
        (10, 8, [2] * 5, [1] * 7 + [3], [2, 2] + [1] * 6),
    ],
)
def test_the_three_rules_differ_as_in_the_documents(
    n: int, k: int, torchs: list[int], older: list[int], newer: list[int]
) -> None:
    """Only torch's rule leaves devices idle while there are enough samples for all."""
    sizes = {name: rule(n, k) for name, rule in CHUNK_RULES.items()}
    assert sizes == {"torch": torchs, "mxnet_older": older, "mxnet_newer": newer}


@given(n=samples, k=devices)
def test_chunk_sizes_are_torchs(n: int, k: int) -> None:
    """Every case is as torch.chunk has it, the empty batch included."""
    assert chunk_sizes(n, k) == [len(part) for part in torch.arange(n).chunk(k)]


@given(n=samples, k=devices)
def test_balanced_sizes_are_numpys(n: int, k: int) -> None:
    """Every case is as numpy.array_split has it, fewer samples than devices included."""
    assert balanced_sizes(n, k) == [len(part) for part in numpy.array_split(numpy.arange(n), k)]


@given(n=samples, k=devices)
def test_floor_sizes_leave_the_remainder_to_the_last_device(n: int, k: int) -> None:
    """All others are equal."""
    sizes = floor_sizes(n, k)
    assert sizes == [n // k] * (k - 1) + [n // k + n % k]
    assert sum(sizes) == n


@given(n=samples, weights=weight_lists)
def test_weighted_sizes_are_the_exact_shares_to_less_than_a_sample(n: int, weights: list[float]) -> None:
    """Nothing lost; a device without weight gets nothing; more weight never means fewer samples."""
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
    """Among them ten tenths, which do not add up to 1 in floating point, and weights whose sum overflows there."""
    assert weighted_sizes(n, weights) == sizes


@pytest.mark.parametrize("weights", [[1, -0.5], [float("nan"), 1], [float("inf"), 1], [0, 0]])
def test_weights_that_say_nothing_are_reported(weights: list[float]) -> None:
    """With the weights themselves."""
    message = f"weights are {weights}: they must be finite and at least 0, and one above 0"
    with pytest.raises(ValueError, match=re.escape(message)):
        weighted_sizes(5, weights)


@pytest.mark.parametrize(("n", "weights"), [(5, []), (-1, [1.0])])
def test_weighted_sizes_reports_impossible_splits(n: int, weights: list[float]) -> None:
    """As the other rules do."""
    with pytest.raises(ValueError, match=f"cannot split {n} samples over {len(weights)} devices"):
        weighted_sizes(n, weights)


@given(n=samples, k=devices)
def test_shard_bounds_cover_every_sample_once_and_in_order(n: int, k: int) -> None:
    """All ranks together see the whole batch; an idle rank's slice is empty."""
    whole = list(range(n))
    assert [i for rank in range(k) for i in whole[shard_bounds(n, k, rank)]] == whole


def test_scatter_is_the_notebooks_example() -> None:
    """A 4x5 arange over two devices: two rows each."""
    first, second = scatter(torch.arange(20).reshape(4, 5), [CPU, CPU])
    assert first.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert second.tolist() == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]


@given(n=st.integers(0, 40), k=world_sizes, columns=st.integers(0, 3))
def test_gather_undoes_scatter(n: int, k: int, columns: int) -> None:
    """Nothing lost, nothing repeated, order kept."""
    whole = torch.arange(n * columns).reshape(n, columns)
    assert torch.equal(gather(scatter(whole, [CPU] * k), CPU), whole)


@rules
@given(n=st.integers(0, 40), k=world_sizes, columns=st.integers(0, 3))
def test_gather_undoes_scatter_by_any_rule(rule: str, n: int, k: int, columns: int) -> None:
    """Each shard has the size that the rule gives it, empty ones included."""
    whole = torch.arange(n * columns).reshape(n, columns)
    sizes = CHUNK_RULES[rule](n, k)
    shards = scatter(whole, [CPU] * k, sizes)
    assert [len(shard) for shard in shards] == sizes
    assert torch.equal(gather(shards, CPU), whole)


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_gather_undoes_scatter_with_any_sizes(sizes: list[int]) -> None:
    """A device may get nothing, also one in the middle."""
    whole = torch.arange(2 * sum(sizes)).reshape(-1, 2)
    X_shards, y_shards = split_batch(whole, whole[:, 0], [CPU] * len(sizes), sizes)
    assert [len(shard) for shard in X_shards] == [len(shard) for shard in y_shards] == sizes
    assert torch.equal(gather(X_shards, CPU), whole)
    assert torch.equal(gather(y_shards, CPU), whole[:, 0])


def test_gradients_pass_through_scatter_and_gather() -> None:
    """Both are differentiable."""
    x = torch.arange(5.0, requires_grad=True)
    (grad,) = torch.autograd.grad(gather([2 * shard for shard in scatter(x, [CPU] * 3)], CPU).sum(), x)
    assert grad.tolist() == [2.0] * 5


def test_gradients_pass_through_a_scatter_with_sizes() -> None:
    """An empty shard changes nothing."""
    x = torch.arange(5.0, requires_grad=True)
    shards = scatter(x, [CPU] * 3, [4, 0, 1])
    (grad,) = torch.autograd.grad(gather([(rank + 1) * shard for rank, shard in enumerate(shards)], CPU).sum(), x)
    assert grad.tolist() == [1.0, 1.0, 1.0, 1.0, 3.0]


def test_gather_makes_scalars_a_vector() -> None:
    """One loss a device becomes a vector of losses, as in nn.DataParallel."""
    assert gather([torch.tensor(1.0), torch.tensor(2.0)], CPU).tolist() == [1.0, 2.0]


def test_split_batch_splits_samples_and_labels_alike() -> None:
    """Row i keeps its label i."""
    X_shards, y_shards = split_batch(torch.arange(10).reshape(10, 1), torch.arange(10), [CPU] * 3)
    assert [len(shard) for shard in X_shards] == [4, 4, 2]
    assert all(torch.equal(X.flatten(), y) for X, y in zip(X_shards, y_shards, strict=True))


def test_split_batch_reports_unequal_lengths() -> None:
    """An error where the notebook asserts."""
    with pytest.raises(ValueError, match="X has 3 samples and y has 2: every sample needs one label"):
        split_batch(torch.zeros(3, 1), torch.zeros(2), [CPU])


def test_scatter_reports_missing_devices() -> None:
    """No devices is a mistake, not an empty result."""
    with pytest.raises(ValueError, match="devices is empty"):
        scatter(torch.zeros(3), [])


def test_scatter_reports_a_tensor_without_axes() -> None:
    """There are no samples in a scalar."""
    with pytest.raises(ValueError, match="its first axis must be the samples"):
        scatter(torch.tensor(1.0), [CPU])


@pytest.mark.parametrize("sizes", [[1, 1], [2, 2], [4, -1], []])
def test_scatter_reports_sizes_that_do_not_fit_the_samples(sizes: list[int]) -> None:
    """Samples would be lost, repeated or counted backwards."""
    message = f"sizes are {sizes} for 3 samples: they must be at least 0 and sum to the samples"
    with pytest.raises(ValueError, match=re.escape(message)):
        scatter(torch.zeros(3), [CPU] * 2, sizes)


def test_scatter_reports_more_sizes_than_devices() -> None:
    """The last samples would have nowhere to go."""
    with pytest.raises(ValueError, match=r"sizes are \[1, 1, 1\] for 2 devices: give at most one size a device"):
        scatter(torch.zeros(3), [CPU] * 2, [1, 1, 1])


def test_gather_reports_missing_shards() -> None:
    """Nothing to gather has no shape."""
    with pytest.raises(ValueError, match="there are no shards to gather"):
        gather([], CPU)


@rules
@pytest.mark.parametrize(("n", "k"), [(-1, 2), (3, 0)])
def test_every_rule_reports_impossible_splits(rule: str, n: int, k: int) -> None:
    """Fewer than no samples, or fewer than one device."""
    with pytest.raises(ValueError, match=f"cannot split {n} samples over {k} devices"):
        CHUNK_RULES[rule](n, k)


@pytest.mark.parametrize("rank", [-1, 2])
def test_shard_bounds_reports_a_rank_outside_the_world(rank: int) -> None:
    """Ranks run from 0 to world_size - 1."""
    with pytest.raises(ValueError, match=f"rank is {rank} in a world of 2"):
        shard_bounds(10, 2, rank)


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


def test_each_cpu_device_is_one_lasting_thread_on_its_own_core() -> None:
    """Bound to the cores that the caller may use, in turn; the caller itself stays free."""
    allowed, devices = os.sched_getaffinity(0), PerDevice([CPU] * 3)

    def where(rank: int) -> tuple[int, set[int], int]:
        return threading.get_ident(), os.sched_getaffinity(0), torch.get_num_threads()

    first, second = devices.map(where, range(3)), devices.map(where, range(3))
    assert first == second
    assert len({ident for ident, _, _ in first} | {threading.get_ident()}) == 4
    cores = sorted(allowed)
    assert [core for _, core, _ in first] == [{cores[rank % len(cores)]} for rank in range(3)]
    assert [threads for _, _, threads in first] == [1] * 3
    assert os.sched_getaffinity(0) == allowed
    devices.close()


def test_the_callers_number_of_threads_is_left_alone() -> None:
    """Also as the default of threads that start later."""
    before = torch.get_num_threads()
    devices, seen = PerDevice([CPU] * 2), []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert torch.get_num_threads() == before
    assert seen == [before]
    devices.close()


def test_one_device_runs_in_the_callers_thread() -> None:
    """World size 1 costs no thread and no core."""
    assert PerDevice([CPU]).map(lambda rank: threading.get_ident(), [0]) == [threading.get_ident()]


@pytest.mark.parametrize("k", [1, 3])
def test_results_come_in_order_and_spare_devices_stay_idle(k: int) -> None:
    """As many calls as arguments."""
    devices = PerDevice([CPU] * k)
    assert devices.map(lambda a, b: (a, b), [1, 2, 3][:k], "xyz"[:k]) == [(1, "x"), (2, "y"), (3, "z")][:k]
    assert devices.map(abs, []) == []
    devices.close()


def test_the_callers_modes_hold_in_the_threads() -> None:
    """Grad mode, inference mode and autocast are per thread in torch."""
    devices = PerDevice([CPU] * 2)

    def modes(rank: int) -> tuple[bool, bool, torch.dtype]:
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), product.dtype

    assert devices.map(modes, range(2)) == [(True, False, torch.float32)] * 2
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert devices.map(modes, range(2)) == [(False, False, torch.bfloat16)] * 2
    with torch.inference_mode():
        assert devices.map(modes, range(2)) == [(False, True, torch.float32)] * 2
    devices.close()


def test_an_error_in_a_thread_is_raised_in_the_caller_once_all_have_ended() -> None:
    """The devices stay usable."""
    devices, ended = PerDevice([CPU] * 3), []

    def work(rank: int) -> None:
        if rank == 0:
            raise KeyError("device 0")
        time.sleep(0.05)
        ended.append(rank)

    with pytest.raises(KeyError, match="device 0"):
        devices.map(work, range(3))
    assert sorted(ended) == [1, 2]
    assert devices.map(abs, [-1, -2, -3]) == [1, 2, 3]
    devices.close()


@pytest.mark.parametrize("forget", [False, True], ids=["close", "del"])
def test_threads_end_with_close_or_with_the_object(forget: bool) -> None:
    """Nothing is left running."""
    devices = PerDevice([CPU] * 2)
    threads = devices.map(lambda rank: threading.current_thread(), range(2))
    if forget:
        del devices
        gc.collect()
    else:
        devices.close()
        devices.close()
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_an_unclosed_object_does_not_keep_the_interpreter_alive() -> None:
    """Not even while a thread is busy."""
    code = """
import threading, time, torch
from reference.replicas import PerDevice
devices = PerDevice([torch.device("cpu")] * 2)
threading.Thread(target=devices.map, args=(time.sleep, [600, 600]), daemon=True).start()
"""
    root = REPOSITORY
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0


def test_a_closed_object_is_reported() -> None:
    """Otherwise the caller would wait forever."""
    devices = PerDevice([CPU] * 2)
    devices.close()
    with pytest.raises(RuntimeError, match="this PerDevice is closed: make a new one"):
        devices.map(abs, [1, 2])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([1, 2, 3],), "arguments for 3 devices, but there are 2"),
        (([1, 2], [1]), r"arguments for \[2, 1\] devices: give at least one sequence, all of one length"),
        ((), r"arguments for \[\] devices"),
    ],
)
def test_arguments_that_do_not_match_the_devices_are_reported(args: tuple[list[int], ...], message: str) -> None:
    """A call too many would be lost silently."""
    devices = PerDevice([CPU] * 2)
    with pytest.raises(ValueError, match=message):
        devices.map(max, *args)
    devices.close()


def test_no_devices_at_all_are_reported() -> None:
    """There is nobody to run anything."""
    with pytest.raises(ValueError, match="devices is empty: name at least one device"):
        PerDevice([])
