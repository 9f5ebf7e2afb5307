"""Stochastic gradient descent as in the book: the gradient is a sum, and the step divides it by the batch size."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def sgd_(params: Iterable[Tensor], lr: float, batch_size: int) -> None:
    """Set p to p - lr * grad / batch_size, then clear the gradient.

    The batch size is the number of samples, over all devices, whose losses are summed in the gradient; ValueError where
    it is below 1. A parameter whose ``.grad`` is None stays as it is.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: a step needs at least one sample")
    for param in params:
        if param.grad is not None:
            param.sub_(param.grad, alpha=lr / batch_size)
            # None rather than zeros, so that the next backward writes the gradient instead of adding to it.
            param.grad = None
