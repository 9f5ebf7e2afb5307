"""How much rounding can change the gradients of a net: the running error analysis of `suite.properties.tolerance`.

The net is evaluated on the absolute values of its parameters, buffers and inputs, so that nothing cancels. Every sample
goes through it twice: the first half of the batch has no errors, and in the second half every rounding has made its
result larger by `THETA`. All terms are positive, so the difference of the two gradients, over `THETA`, is their error
in units of the roundoff, to first order. Everything is computed in float64.

A net may consist of linear layers, convolutions, tanh, ReLU, layer normalisation over the last axis, and sums of these,
as `suite.properties.nets` builds it. Errors of other functions are not known here, and taken for 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

THETA = 2.0**-26  # many of them are less than 1, and a difference of two gradients has digits enough
FUNCTION = 4  # units of roundoff by which tanh, exp, log and the like are off: two ulp on a GPU
LOSS = 20  # units besides those of the sum over classes: `suite.properties.tolerance`
TANH = (torch.tanh, Tensor.tanh)
RELU = (F.relu, torch.relu)
PRODUCTS = (F.linear, F.conv2d)


def gradients(model: nn.Module, X: Tensor, *, cross_entropy: bool = True) -> tuple[list[Tensor], list[Tensor]]:
    """Return for each parameter the sum of the terms of its gradient, and the error of that sum.

    Args:
        model: the output for a sample depends on that sample only, and is (n, classes).
        X: the whole minibatch, (n, ...).
        cross_entropy: whether the loss is that, and no trainer's own.

    Returns:
        Two lists of float64 tensors in the shapes of `model.parameters()`: the absolute terms, added up, where the
        derivative of the loss of each sample by each output is 1, and the error in units of the roundoff. Both are 0
        for a parameter that is frozen or unused.
    """
    wide = {name: tensor.detach().double() for name, tensor in model.named_parameters()}
    buffers = {name: tensor.double() for name, tensor in model.named_buffers()}
    with torch.no_grad(), _Values() as values:
        p = torch.func.functional_call(model, {**wide, **buffers}, (X.double(),)).softmax(1)
    for name, parameter in model.named_parameters():
        wide[name] = wide[name].abs().requires_grad_(parameter.requires_grad)
    absolute = {**wide, **{name: tensor.abs() for name, tensor in buffers.items()}}
    with _Magnitudes(values.found) as magnitudes:
        outputs = torch.func.functional_call(model, absolute, (torch.cat([X, X]).double().abs(),))
    exact, off = outputs.chunk(2)
    n, classes = exact.shape
    moves = 2 * p * (1 - p) if cross_entropy else 0.5
    slopes = 1 + THETA * (LOSS + classes) + moves * (off - exact).detach().amax(1, keepdim=True)
    added = 1 + THETA * (n * magnitudes.places + 1)  # all samples, and twice for a parameter in two places
    trained = [tensor for tensor in wide.values() if tensor.requires_grad]
    sums = torch.autograd.grad(exact.sum(), trained, retain_graph=True, allow_unused=True, materialize_grads=True)
    more = torch.autograd.grad(added * (slopes * off).sum(), trained, allow_unused=True, materialize_grads=True)
    errors = [(b - a) / THETA for a, b in zip(sums, more, strict=True)]
    return _of_all(wide, trained, sums), _of_all(wide, trained, errors)


def _of_all(parameters: dict[str, Tensor], trained: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    """Return the values of all parameters, given those of the trained ones: 0 for the others."""
    known = {id(one): value for one, value in zip(trained, values, strict=True)}
    return [known.get(id(one), torch.zeros_like(one).detach()) for one in parameters.values()]


class _Values(TorchFunctionMode):
    """Keeps what the functions returned that are not linear, and what layer normalisations were given."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        if func in (*TANH, *RELU):
            self.found.append(returned)
        elif func is F.layer_norm:
            self.found.append(args[0])
        return returned


class _Magnitudes(TorchFunctionMode):
    """Computes magnitudes in the first half of a batch, and magnitudes with their errors in the second.

    Args:
        values: what `_Values` has kept of the net itself.

    Attributes:
        places: how many terms a sample adds to the gradient of a weight: the places of a convolution.
    """

    def __init__(self, values: Sequence[Tensor]) -> None:
        super().__init__()
        self._values: Iterator[Tensor] = iter(values)
        self.places = 1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in TANH:
            return _tanh(args[0], next(self._values))
        if func in RELU:
            return _relu(args[0], next(self._values))
        if func is F.layer_norm:
            return _layer_norm(*args, **kwargs, true=next(self._values))
        returned = func(*args, **kwargs)
        if func not in PRODUCTS:
            return returned
        weight: Tensor = args[1]
        self.places = max(self.places, returned[0, 0].numel())
        # Of the inner products with the inputs and, in the backward, with the outputs, the longer one; then a bias and
        # what may be added to the layer's result.
        longest = weight.numel() // min(weight.shape[:2])
        exact, off = returned.chunk(2)
        return torch.cat([exact, off * (1 + (longest + 2) * THETA)])


def _tanh(x: Tensor, true: Tensor) -> Tensor:
    """Return the magnitudes of tanh, given those of its argument and its true values."""
    t, slope = true.abs(), 1 - true * true
    exact, off = x.detach().chunk(2)
    error = slope * (off - exact) + FUNCTION * THETA * t
    slopes = slope + 2 * t * error + THETA  # 1 - t^2, whose square is rounded, and whose difference
    return _linear(x, torch.cat([t, t + error]), torch.cat([slope, slopes * (1 + THETA)]))


def _relu(x: Tensor, true: Tensor) -> Tensor:
    """Return the magnitudes of ReLU, given those of its argument and its true values."""
    exact, off = x.detach().chunk(2)
    slope = (true > 0).to(x.dtype)
    return _linear(x, torch.cat([true, true + slope * (off - exact)]), torch.cat([slope, slope]))


def _linear(x: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """Return a tensor that has these values and, by x, these derivatives."""
    return value + slope * (x - x.detach())


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float, *, true: Tensor) -> Tensor:
    """Return the magnitudes of (x - mean) / sqrt(variance + eps) * weight + bias, given x's and its true values."""
    features, centred = true.shape[-1], true - true.mean(-1, keepdim=True)
    root = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    hat = (centred * root).abs()
    exact, off = x.detach().chunk(2)
    error = root * (_spread(off - exact) + (features + 1) * THETA * _spread(exact))  # of what is centred
    of_root = (hat * error).mean(-1, keepdim=True) + (features + 4 + FUNCTION) * THETA  # its share, and hat's product
    hats = torch.cat([hat, hat + error + hat * of_root])
    roots = torch.cat([root, root * (1 + of_root) * (1 + (features + 4) * THETA)])
    through = roots * (_spread(x) + hats * (hats * x).mean(-1, keepdim=True))
    exact, off = (weight * (hats + through - through.detach()) + bias).chunk(2)
    return torch.cat([exact, off * (1 + 2 * THETA)])


def _spread(x: Tensor) -> Tensor:
    """Return what a difference from the mean is made of."""
    return x + x.mean(-1, keepdim=True)
