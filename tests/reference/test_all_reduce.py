"""All-reduce beyond its sums: any strides, the documents' examples, what is refused, and GPUs.

Exact sums, in the caller's own tensors and bit-equal on all devices, are checked by `suite.properties.functions`, for
every algorithm in `tests/properties/test_properties.py` and for wrong ones in `tests/mutants`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.cuda import comm, nccl

from reference.all_reduce import ALL_REDUCE, AllReduce, naive
from suite.properties.functions import all_reduce_keeps_tensors_apart, all_reduce_sums
from suite.properties.seen import RIGHT
from suite.properties.tolerance import sum_bound
from suite.room.devices import cuda_count
from tests.mutants import book_all_reduce, noncontiguous_result_lost
from tests.support.collectives import (
    DTYPES,
    FLOATS,
    STRANGER,
    Layout,
    gapped,
    layouts,
    plain,
    reals,
    shapes,
    transposed,
    whole_numbers,
)
from tests.support.function_cases import search
from tests.support.strategies import seeds

every_algorithm = pytest.mark.parametrize("all_reduce_", ALL_REDUCE.values(), ids=ALL_REDUCE.keys())


def check_layouts(all_reduce_: AllReduce, before: Sequence[Tensor], layouts: Sequence[Layout]) -> None:
    """Hold the sum of copies of ``before`` in these layouts, one a device, against that of copies without gaps."""
    expected = [plain(values) for values in before]
    all_reduce_(expected)
    tensors = [layout(values) for values, layout in zip(before, layouts, strict=False)]
    places = [(tensor.data_ptr(), tensor.stride()) for tensor in tensors]
    all_reduce_(list(tensors))
    assert [(tensor.data_ptr(), tensor.stride()) for tensor in tensors] == places, "not the caller's memory"
    for tensor, layout in zip(tensors, layouts, strict=False):
        if layout is gapped:
            gaps = tensor.as_strided(tensor.shape, tensor.stride(), 1)
            assert (gaps == STRANGER).all(), "written beside the tensor"
    assert all(map(torch.equal, tensors, expected)), "not the sum"


@every_algorithm
@given(k=st.integers(0, 8), shape=shapes, layouts=layouts, seed=seeds, dtype=st.sampled_from(DTYPES))
def test_strides_change_nothing(
    all_reduce_: AllReduce, k: int, shape: tuple[int, ...], layouts: list[Layout], seed: int, dtype: torch.dtype
) -> None:
    """Every dtype, any number of devices, empty and 0-dim shapes, strides that differ from device to device."""
    check_layouts(all_reduce_, whole_numbers(shape, k, seed, dtype), layouts)


def blind_to_strides(tensors: Sequence[Tensor]) -> None:
    """Takes the elements to lie side by side."""
    naive.naive_([tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors])


@pytest.mark.parametrize(
    ("wrong", "layout", "noticed"),
    [
        (blind_to_strides, gapped, "written beside the tensor"),
        (noncontiguous_result_lost.mutant, transposed, "not the sum"),
    ],
)
def test_an_algorithm_that_strides_mislead_is_noticed(wrong: AllReduce, layout: Layout, noticed: str) -> None:
    """On three devices with six numbers each; the right one passes the same."""
    before = whole_numbers((2, 3), 3, 0, torch.float32)
    check_layouts(naive.naive_, before, [layout] * 3)
    with pytest.raises(AssertionError, match=noticed):
        check_layouts(wrong, before, [layout] * 3)


def own_order(tensors: Sequence[Tensor]) -> None:
    """Each device adds the others' to its own."""
    sums = [sum(tensors[i:] + tensors[:i]) for i in range(len(tensors))]  # type: ignore[operator]
    for tensor, total in zip(tensors, sums, strict=True):
        tensor.copy_(total)


def test_an_order_of_its_own_on_each_device_is_found() -> None:
    """Every sum is within the error bound, but replicas that add them drift apart."""
    assert "end with different bits" in search("all_reduce", "all_reduce_sums", own_order).finding


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


def test_the_books_all_reduce_loses_the_sum() -> None:
    """Rebinding the slots leaves the gradients at 6, 2, 3."""
    assert gradients_after(book_all_reduce.mutant) == [6.0, 2.0, 3.0]


@every_algorithm
def test_parameters_can_be_reduced_outside_no_grad(all_reduce_: AllReduce) -> None:
    """The exchange is not part of any graph, so leaves that require a gradient may take part."""
    leaves = [transposed(torch.ones(2, 3)).requires_grad_() for _ in range(3)]
    all_reduce_(leaves)
    assert all(leaf.tolist() == [[3.0] * 3] * 2 and leaf.is_leaf for leaf in leaves)


@every_algorithm
@pytest.mark.parametrize(("dtype", "total"), [(torch.int8, -56), (torch.uint8, 200 + 100 - 256)], ids=str)
def test_whole_numbers_wrap_around(all_reduce_: AllReduce, dtype: torch.dtype, total: int) -> None:
    """100 + 100 = 200 - 256 in int8, and 200 + 100 goes round in uint8."""
    first = 100 if dtype is torch.int8 else 200
    tensors = [torch.tensor([value], dtype=dtype) for value in (first, 100)]
    all_reduce_(tensors)
    assert [tensor.item() for tensor in tensors] == [total, total]


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
    """The same checks as on CPU devices, the error bound among them."""
    before = reals(7 * 11, len(devices()), 0, dtype)
    tensors = [transposed(values.view(7, -1).to(device)) for values, device in zip(before, devices(), strict=True)]
    assert all_reduce_sums(all_reduce_, tensors) == RIGHT
    assert all_reduce_keeps_tensors_apart(all_reduce_, tensors) == RIGHT


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
    # The bound is itself computed in float64, with a rounding for each addition, which the last factor covers.
    allowed = 2 * sum_bound(before) * (1 + 1e-12)
    for mine, yours in zip(ours, theirs, strict=True):
        assert torch.equal(mine.cpu(), ours[0].cpu())
        assert ((mine.cpu().double() - yours.cpu().double()).abs() <= allowed).all()
