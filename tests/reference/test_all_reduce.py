"""All-reduce beyond its sums: strides that differ between devices, what is refused, and GPUs.

`suite.properties.functions` checks that sums are exact, are in the caller's own tensors (also through a temporary list)
and are bit-equal on all devices: `tests/properties/test_properties.py` for every algorithm, `tests/mutants` for wrong
ones, the book's among them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.cuda import comm

from reference.all_reduce import ALL_REDUCE, AllReduce
from suite.properties.answers import RIGHT
from suite.properties.functions import all_reduce_keeps_tensors_apart, all_reduce_sums
from suite.room.devices import cuda_count
from tests.support.collectives import (
    DTYPES,
    FLOATS,
    STRANGER,
    Layout,
    gapped,
    layouts,
    reals,
    shapes,
    transposed,
    whole_numbers,
)
from tests.support.strategies import seeds

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


@every_algorithm
def test_rows_of_one_matrix_may_be_the_devices_tensors(all_reduce_: AllReduce) -> None:
    matrix = torch.arange(6.0).view(3, 2)
    all_reduce_(list(matrix))
    assert matrix.tolist() == [[6.0, 9.0]] * 3


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
