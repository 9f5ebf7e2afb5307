"""How far two evaluations of one gradient on one kind of device may differ, whatever the net is made of.

The functions are the same on both sides, and only sums have another order. A sum of n terms errs by at most (n - 1) u
sum|term| in any order (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2). A term is what
one output of one sample adds to one entry. Each term is itself made of inner products along the net, in which terms
cancel; so n is the minibatch size plus the longest inner product, and of the sums over a parameter's entries the
largest is taken for all of them. The checks themselves use `suite.properties.tolerance.gradient_bound`, which knows
their nets alone and lets nothing cancel: of a wide net its worst case is so far above what happens that an error of a
millionth in LeNet would be within it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suite.properties.tolerance import roundoff

MOST_VALUES = 10**6  # of gradients that are computed at once


def gradient_bound(model: nn.Module, X: Tensor, lr: float) -> list[Tensor]:
    """Return for each parameter how far two gradients of the mean cross-entropy may differ, read back from a step.

    Args:
        model: with the weights before the step; the output for a sample depends on that sample only.
        X: the whole minibatch, (n, ...).
        lr: learning rate of the step.
    """
    u, parameters = roundoff(X.dtype), list(model.parameters())
    widest = max(parameter.numel() // min(parameter.shape or (1,)) for parameter in parameters)
    terms = len(X) + widest + X[:1].numel()
    sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters]
    outputs = model(X).flatten()
    at_once = max(1, MOST_VALUES // sum(parameter.numel() for parameter in parameters))
    for chosen in torch.split(torch.eye(len(outputs), dtype=outputs.dtype), at_once):
        gradients = torch.autograd.grad(
            outputs, parameters, chosen, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
        for total, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                total += gradient.abs().sum(0, dtype=torch.float64)
    largest = [float(total.max()) / len(X) for total in sums]
    read = [2 * u * parameter.detach().to(torch.float64).abs() / lr for parameter in parameters]
    # A parameter that is unused must not change at all.
    return [(2 * terms * u * most + update) * (most > 0) for most, update in zip(largest, read, strict=True)]
