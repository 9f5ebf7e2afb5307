"""How far two right computations may differ: every tolerance of the correctness checks is derived here.

**A gradient, read back from the parameters** (`gradient_bound`). On k devices and on one, the same gradient is computed
in two ways whose roundings differ: sums have another order, and devices of two kinds have other functions as well. A
running error analysis to first order (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.3)
carries along with every quantity q its largest error e(q), in units of the unit roundoff u; nothing cancels in it:

- The scores of a layer, z = W h + b, are inner products of f terms, summed in any order (section 4.2 there):
  e(z) = |W| e(h) + (f + 2) (|W| |h| + |b|). One unit of the 2 is for the bias, one for what may be added to z.
- t = tanh(z) is off by two units in the last place at most, which are 4 u ("CUDA C++ Programming Guide", section
  "Mathematical Functions", the tables of maximum errors, where tanhf, expf, logf and rsqrtf have no more):
  e(t) = (1 - t^2) e(z) + 4 |t|. Its derivative 1 - t^2 is off by 2 |t| e(t) + 1: near |t| = 1 nearly all of it.
- A layer normalisation is treated in the same way (`magnitudes`). ReLU rounds nothing.
- The derivative of the loss of a sample by a score is at most 1 in size for cross-entropy, p - y. It is off by
  2 p (1 - p), to which the sizes of a softmax's derivatives add up, times the largest e(z), and by 20 + C of C classes:
  C for the sum of exp(z), 9 for two exp, a log and the differences between them, 1 for p - y, and the rest for factors
  such as 1 / n, the number of devices and the rate. A trainer's own loss counts with its largest derivative where that
  is more, and as if p were 1 / 2.
- In the backward, errors go through the same weights and derivatives. A parameter's gradient is a sum over samples and,
  of a convolution, places, which is off by their number times the sum of all sizes.

Both computations err: 2 u e. The gradient is read as (before - after) / lr. A trainer may average parameters in the
place of gradients: each of k updates is rounded, their sum k - 1 times, and the quotient; that adds (k + 1) u |p| / lr,
and p may have moved by k times the rate times the gradient of one shard, which is a part of the same sum. It is first
order through a smooth net: with ReLU a unit within rounding of zero may flip, which float64 makes rare enough and
float32 does not; so float32 cases have smooth nets.

**Half of the digits** (`half_the_digits`), where rounding may be amplified by a factor that no formula gives: under
oracle "self" (Adam divides by the gradient's own size), behind a batch normalisation (it divides by the spread of a few
samples, at most 1 / sqrt(1e-5) = 316 a layer), for language models (their normalisations divide by the spread of a few
features, and a softmax is exponential), and for a reported loss. Wrong data parallelism errs in the first digit.

**A sum over k devices in their own dtype** (`sum_bound`): (k - 1) u sum|x| / (1 - (k - 1) u), the same theorem without
"first order", because u is 1/256 in bfloat16.
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
LOSS = 20  # units besides those of the sum over classes
TANH = (torch.tanh, Tensor.tanh)
RELU = (F.relu, torch.relu)
PRODUCTS = (F.linear, F.conv2d)


def roundoff(dtype: torch.dtype) -> float:
    """Return the unit roundoff u: the largest relative error of rounding to nearest."""
    return torch.finfo(dtype).eps / 2


def half_the_digits(dtype: torch.dtype) -> float:
    """Return the relative error that leaves half of a dtype's digits right."""
    return float(torch.finfo(dtype).eps ** 0.5)


def gradient_bound(
    model: nn.Module, X: Tensor, lr: float, slope: float | None = None, world_size: int = 1
) -> list[Tensor]:
    """Return the largest error allowed for each parameter's gradient of the mean loss, derived above.

    Args:
        model: with the weights before the step, made of what `magnitudes` knows; the output for a
            sample depends on that sample only.
        X: the whole minibatch, (n, ...).
        lr: learning rate of the step.
        slope: largest derivative of a trainer's own loss of a sample by an output; None for cross-entropy.
        world_size: devices that may have made updates of their own.

    Returns:
        float64 tensors in the shapes of `model.parameters()`.
    """
    u, bounds, share = roundoff(X.dtype), [], (1.0 if slope is None else slope) / len(X)
    terms, errors = magnitudes(model, X, cross_entropy=slope is None)
    for parameter, term, error in zip(model.parameters(), terms, errors, strict=True):
        updates = parameter.detach().to(torch.float64).abs() / lr
        if world_size > 1:
            updates = updates + world_size * share * term
        bound = (2 * u * share * error + (world_size + 1) * u * updates).nan_to_num(nan=torch.inf, posinf=torch.inf)
        # A parameter that is unused or frozen must not change at all.
        bounds.append(bound if bool(term.any()) else torch.zeros_like(bound))
    return bounds


def half_of_the_largest(gradient: list[Tensor], parameters: list[Tensor], lr: float, share: float) -> list[Tensor]:
    """Return the error allowed for each gradient of a language model: a share of the largest entry, and the reading.

    The share is `half_the_digits` of the parameters' dtype. The gradients are right ones, float64, in the shapes of the
    parameters before the step.
    """
    allowed = share * max(float(part.abs().max()) for part in gradient)
    return [allowed + share**2 * parameter.abs() / lr for parameter in parameters]  # share ** 2 is 2 u


def sum_bound(tensors: Sequence[Tensor]) -> Tensor:
    """Return the largest error, float64, of a sum over devices in the tensors' own floating-point dtype."""
    error = (len(tensors) - 1) * roundoff(tensors[0].dtype)
    return torch.stack([tensor.to(torch.float64).abs() for tensor in tensors]).sum(0) * error / (1 - error)


def worst(
    names: Sequence[str], expected: Sequence[Tensor], actual: Sequence[Tensor], allowed: Sequence[Tensor]
) -> tuple[str, float, float] | None:
    """Return name, error and bound of the entry with the largest error over bound; None where all are within it."""
    found, most = None, 1.0
    for name, right, value, a in zip(names, expected, actual, allowed, strict=True):
        error = (right - value).abs()
        # 0 / 0 is right: an entry without an error whose bound is 0. NaN is wrong.
        ratio = torch.where(error == 0, torch.zeros_like(error), error / a).nan_to_num(nan=float("inf")).flatten()
        if ratio.numel() and float(ratio.max()) > most:
            at = int(ratio.argmax())
            found, most = (name, float(error.flatten()[at]), float(a.flatten()[at])), float(ratio.max())
    return found


def size(tensor: Tensor) -> float:
    """Return the largest absolute value of a tensor, which has one."""
    return float(tensor.abs().max())


def magnitudes(model: nn.Module, X: Tensor, *, cross_entropy: bool = True) -> tuple[list[Tensor], list[Tensor]]:
    """Return for each parameter the sum of the terms of its gradient, and the error of that sum.

    This is the running error analysis. The net is evaluated on the absolute values of its parameters, buffers and
    inputs, so that nothing cancels. Every sample goes through it twice: the first half of the batch has no errors, and
    in the second half every rounding has made its result larger by `THETA`. All terms are positive, so the difference
    of the two gradients, over `THETA`, is their error in units of the roundoff, to first order.

    A net may consist of linear layers, convolutions, tanh, ReLU, layer normalisation over the last axis, and sums of
    these. Errors of other functions are not known here, and taken for 0.

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
    with _Magnitudes(values.found) as of_layers:
        outputs = torch.func.functional_call(model, absolute, (torch.cat([X, X]).double().abs(),))
    exact, off = outputs.chunk(2)
    n, classes = exact.shape
    moves = 2 * p * (1 - p) if cross_entropy else 0.5
    slopes = 1 + THETA * (LOSS + classes) + moves * (off - exact).detach().amax(1, keepdim=True)
    added = 1 + THETA * (n * of_layers.places + 1)  # all samples, and twice for a parameter in two places
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

    It gets what `_Values` has kept of the net. `places` is how many terms a sample adds to the gradient of a weight:
    the places of a convolution.
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
