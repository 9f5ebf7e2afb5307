"""Torch's gradients, and the steps of trainers, against LeNet's gradients derived by hand and difference quotients.

Every tolerance is `tests.support.strategies.gradient_bound`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference.models.init import build
from reference.models.resnet import Residual
from reference.trainers.scratch import Scratch
from reference.trainers.single import Single
from tests.support import numpy_lenet
from tests.support.strategies import CPU, LR, gradient_bound, update_bound

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


def lenet(init: str = "xavier", seed: int = 0) -> nn.Module:
    """Return LeNet in float64, with random biases: an initial bias of 0 would hide errors."""
    net = build("lenet", init, seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return net


def images(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, 28, 28, generator=generator, dtype=torch.float64), torch.arange(n) % 10


def by_hand(net: nn.Module, X: Tensor, y: Tensor) -> list[Tensor]:
    params = [parameter.detach().numpy() for parameter in net.parameters()]
    return [torch.from_numpy(gradient) / len(y) for gradient in numpy_lenet.gradients(params, X.numpy(), y.numpy())]


def worst_error(net: nn.Module, X: Tensor, y: Tensor) -> float:
    """Return the largest difference between autograd's gradient and the one by hand, as a multiple of its bound."""
    autograd = torch.autograd.grad(F.cross_entropy(net(X), y), list(net.parameters()))
    bounds = gradient_bound(net, X, lr=1.0)
    pairs = zip(autograd, by_hand(net, X, y), bounds, strict=True)
    return max(float(((ours - theirs).abs() / bound).max()) for ours, theirs, bound in pairs)


@pytest.mark.parametrize("n", [1, 7])
@pytest.mark.parametrize("init", ["normal", "default", "xavier"])
def test_autograds_gradients_of_lenet_are_those_derived_by_hand(init: str, n: int) -> None:
    assert worst_error(lenet(init, seed=n), *images(n)) <= 1


@pytest.mark.parametrize(
    "layer", ["conv2d_backward", "avg_pool2d_backward", "relu_backward", "linear_backward", "cross_entropy_backward"]
)
def test_a_layer_whose_gradient_is_off_by_a_millionth_is_rejected(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(numpy_lenet, layer)

    def off(*args: Any) -> Any:
        gradients = right(*args)
        return tuple(1.000001 * each for each in gradients) if isinstance(gradients, tuple) else 1.000001 * gradients

    monkeypatch.setattr(numpy_lenet, layer, off)
    assert worst_error(lenet(), *images(2)) > 1e3


@pytest.mark.parametrize("downsample", [False, True])
def test_difference_quotients_confirm_autograds_gradients_of_a_residual_block(downsample: bool) -> None:
    """The block is in training mode, so the gradient passes through the statistics of both batch normalisations."""
    torch.manual_seed(0)
    block = Residual(2, 3 if downsample else 2, downsample=downsample).double()
    names, params = zip(*block.named_parameters(), strict=True)
    X = torch.randn(3, 2, 5, 4, dtype=torch.float64, requires_grad=True)

    def forward(X: Tensor, *params: Tensor) -> Tensor:
        return torch.func.functional_call(block, dict(zip(names, params, strict=True)), X)

    assert torch.autograd.gradcheck(forward, (X, *params))


def test_trainers_steps_are_those_derived_by_hand() -> None:
    """Shards are of 10, of 4, 4, 2 and of 2, 2, 2, 2, 2 samples; dividing by the first shard of 4 is rejected."""
    net, (X, y) = lenet(), images(10)
    expected = list(zip(net.parameters(), by_hand(net, X, y), update_bound(net, X, LR), strict=True))
    for made in (Single(net, [CPU], lr=LR), *(Scratch(net, [CPU] * devices, lr=LR) for devices in (1, 3, 8))):
        made.step(X, y, 10)
        for replica in made.replicas:
            for taken, (before, gradient, bound) in zip(replica.parameters(), expected, strict=True):
                assert bool(((taken - (before - LR * gradient)).abs() <= bound).all())
                assert bool(((taken - (before - LR * gradient * 10 / 4)).abs() > 1e3 * bound).any())
        if isinstance(made, Scratch):
            made.close()
