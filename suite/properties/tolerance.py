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
- A layer normalisation is treated in the same way (`suite.properties.magnitudes`). ReLU rounds nothing.
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

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from suite.properties import magnitudes


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
        model: with the weights before the step, made of what `suite.properties.magnitudes` knows; the output for a
            sample depends on that sample only.
        X: the whole minibatch, (n, ...).
        lr: learning rate of the step.
        slope: largest derivative of a trainer's own loss of a sample by an output; None for cross-entropy.
        world_size: devices that may have made updates of their own.

    Returns:
        float64 tensors in the shapes of `model.parameters()`.
    """
    u, bounds, share = roundoff(X.dtype), [], (1.0 if slope is None else slope) / len(X)
    terms, errors = magnitudes.gradients(model, X, cross_entropy=slope is None)
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
