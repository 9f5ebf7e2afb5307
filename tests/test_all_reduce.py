"""The sum of one tensor per device, on every device, in place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.all_reduce import ALL_REDUCE, AllReduce
from reference.sgd import sgd_
from tests.strategies import seeds, world_sizes

every_algorithm = pytest.mark.parametrize("all_reduce_", ALL_REDUCE.values(), ids=ALL_REDUCE.keys())


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
    """It rebinds the slots of the list, and so the gradients become 6, 2, 3 (d2l-ai/d2l-zh#955)."""

    def rebinding(tensors: list[Tensor]) -> None:
        for tensor in tensors[1:]:
            tensors[0][:] += tensor
        for i in range(1, len(tensors)):
            tensors[i] = tensors[0].clone()

    assert gradients_after(rebinding) == [6.0, 2.0, 3.0]  # type: ignore[arg-type]


@every_algorithm
@given(
    k=world_sizes, n=st.integers(0, 9), seed=seeds, dtype=st.sampled_from([torch.float32, torch.float64, torch.int64])
)
def test_every_device_ends_with_the_exact_sum_in_its_own_tensor(
    all_reduce_: AllReduce, k: int, n: int, seed: int, dtype: torch.dtype
) -> None:
    """Whole numbers add up exactly in any order; the tensors stay the caller's and share no memory."""
    generator = torch.Generator().manual_seed(seed)
    before = [torch.randint(-999, 999, (n,), generator=generator).to(dtype) for _ in range(k)]
    tensors = [tensor.clone() for tensor in before]
    addresses = [tensor.data_ptr() for tensor in tensors]
    all_reduce_(tensors)
    assert all(torch.equal(tensor, torch.stack(before).sum(0)) for tensor in tensors)
    assert [tensor.data_ptr() for tensor in tensors] == addresses


@every_algorithm
@given(k=world_sizes, seed=seeds)
def test_the_copies_are_bit_equal_in_floating_point(all_reduce_: AllReduce, k: int, seed: int) -> None:
    """Whatever the order of the additions, it is one sum that everybody gets; it is within the rounding bound."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(7, generator=generator) for _ in range(k)]
    exact = torch.stack(tensors).double().sum(0)
    bound = k * torch.finfo(torch.float32).eps * torch.stack(tensors).double().abs().sum(0)
    all_reduce_(tensors)
    assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
    assert ((tensors[0].double() - exact).abs() <= bound).all()


@every_algorithm
def test_no_tensors_is_allowed(all_reduce_: AllReduce) -> None:
    """A parameter without a gradient anywhere has nothing to exchange."""
    all_reduce_([])


@every_algorithm
def test_parameters_can_be_reduced_outside_no_grad(all_reduce_: AllReduce) -> None:
    """The exchange is not part of any graph, so leaves that require a gradient may take part."""
    leaves = [torch.ones(2, requires_grad=True) for _ in range(2)]
    all_reduce_(leaves)
    assert all(leaf.tolist() == [2.0, 2.0] and leaf.is_leaf for leaf in leaves)


@every_algorithm
@pytest.mark.parametrize("other", [torch.zeros(3), torch.zeros(2, dtype=torch.float64)], ids=["shape", "dtype"])
def test_unequal_tensors_are_reported_and_left_alone(all_reduce_: AllReduce, other: Tensor) -> None:
    """Broadcasting or casting would be silently wrong."""
    first = torch.ones(2)
    with pytest.raises(ValueError, match=r"tensor 1 is .* needs equal shapes and dtypes on every device"):
        all_reduce_([first, other])
    assert first.tolist() == [1.0, 1.0]


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
