"""How far two right computations may differ: every tolerance of the correctness checks is derived here.

**A gradient, read back from the parameters** (`gradient_bound`). On k devices and on one, the same sum over the samples
of a minibatch is evaluated in two orders. Evaluating a sum of n terms in any order errs by at most (n - 1) u sum|term|
to first order (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2), u being the unit
roundoff. A term here is what one output of one sample adds to one entry: the derivative of that output, times that of
the loss, which for cross-entropy is at most 1 in size. Taking 1 covers that p - y loses digits where p is close to y;
a trainer's own loss counts with its largest derivative where that is more.
Each term is itself made of inner products along the net, in which terms cancel; so n is the minibatch size plus the
longest inner product, and of the sums over a parameter's entries the largest is taken for all of them. Both evaluations
err: 2 n u. A tanh's derivative 1 - t^2 is such a sum, too: where t is near 1 its terms cancel, which shows on devices
of two kinds, because they round t differently. So a term counts with 1 + t^2 in its place. The gradient is read as
(before - after) / lr. A trainer may average parameters in the place of gradients: each of k updates is rounded, their
sum k - 1 times, and the quotient; that adds (k + 1) u |p| / lr, and p may have moved by k times the rate times the
gradient of one shard, which is a part of the same sum. It is first order through a smooth net: with ReLU
a unit within rounding of zero may flip, which float64 makes rare enough and float32 does not; so float32 cases have
smooth nets.

**Half of the digits** (`half_the_digits`), where rounding may be amplified by a factor that no formula gives: under
oracle "self" (Adam divides by the gradient's own size), behind a batch normalisation (it divides by the spread of a few
samples, at most 1 / sqrt(1e-5) = 316 a layer), for language models (their normalisations divide by the spread of a few
features, and a softmax is exponential), and for a reported loss. Wrong data parallelism errs in the first digit.

**A sum over k devices in their own dtype** (`sum_bound`): (k - 1) u sum|x| / (1 - (k - 1) u), the same theorem without
"first order", because u is 1/256 in bfloat16.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

MOST_VALUES = 10**6  # of gradients that are computed at once


def roundoff(dtype: torch.dtype) -> float:
    """Return the unit roundoff u: the largest relative error of rounding to nearest."""
    return torch.finfo(dtype).eps / 2


def half_the_digits(dtype: torch.dtype) -> float:
    """Return the relative error that leaves half of a dtype's digits right."""
    return float(torch.finfo(dtype).eps ** 0.5)


def gradient_bound(model: nn.Module, X: Tensor, lr: float, slope: float = 1.0, world_size: int = 1) -> list[Tensor]:
    """Return the largest error allowed for each parameter's gradient of the mean loss, derived above.

    Args:
        model: with the weights before the step; the output for a sample depends on that sample only.
        X: the whole minibatch, (n, ...).
        lr: learning rate of the step.
        slope: largest derivative of the loss of a sample by an output; 1 for cross-entropy.
        world_size: devices that may have made updates of their own.

    Returns:
        float64 tensors in the shapes of `model.parameters()`.
    """
    u = roundoff(X.dtype)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    widest = max(parameter.numel() // min(parameter.shape or (1,)) for parameter in parameters)
    terms = len(X) + widest + X[:1].numel()
    sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters]
    with _without_cancelling(model):
        outputs = model(X).flatten()
    at_once = max(1, MOST_VALUES // sum(parameter.numel() for parameter in parameters))
    for chosen in torch.split(torch.eye(len(outputs), dtype=outputs.dtype), at_once):
        gradients = torch.autograd.grad(
            outputs, parameters, chosen, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
        for total, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                total += gradient.abs().sum(0, dtype=torch.float64)
    largest = {id(parameter): float(total.max()) for parameter, total in zip(parameters, sums, strict=True)}
    bounds = []
    for parameter in model.parameters():
        steepest = slope * largest.get(id(parameter), 0.0) / len(X)
        rounding = 2 * terms * u * steepest
        updates = parameter.detach().to(torch.float64).abs() / lr
        if world_size > 1:
            updates = updates + world_size * steepest
        update = (world_size + 1) * u * updates
        # A parameter that is unused or frozen must not change at all.
        bounds.append(rounding + update if rounding else torch.zeros_like(update))
    return bounds


class _TanhTerms(torch.autograd.Function):
    """tanh, with the sum of the absolute terms of its derivative, 1 + t^2, in the derivative's place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        t: Tensor = x.tanh()
        ctx.save_for_backward(t)
        return t

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        t: Tensor = ctx.saved_tensors[0]
        return gradients[0] * (1 + t * t)


@contextlib.contextmanager
def _without_cancelling(model: nn.Module) -> Iterator[None]:
    """Let every tanh module of a model compute `_TanhTerms`."""
    modules = [module for module in model.modules() if isinstance(module, nn.Tanh)]
    hooks = [module.register_forward_hook(lambda _, inputs, __: _TanhTerms.apply(*inputs)) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def half_of_the_largest(gradient: list[Tensor], parameters: list[Tensor], lr: float, share: float) -> list[Tensor]:
    """Return the error allowed for each gradient of a language model: a share of the largest entry, and the reading.

    Args:
        gradient: right ones, float64.
        parameters: before the step, in the same shapes.
        lr: learning rate of the step.
        share: `half_the_digits` of the parameters' dtype.
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
