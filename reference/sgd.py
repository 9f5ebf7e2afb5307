"""Stochastic gradient descent as the book writes it: the gradient is a sum, and the step divides it by the batch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def sgd_(params: Iterable[Tensor], lr: float, batch_size: int) -> None:
    """Set p to p - lr * grad / batch_size, then clear the gradient.

    Args:
        params: leaf tensors; one whose ``.grad`` is None stays as it is.
        lr: learning rate.
        batch_size: samples whose losses the gradient sums, over all devices.

    Raises:
        ValueError: ``batch_size`` is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: a step needs at least one sample")
    for param in params:
        if param.grad is not None:
            param.sub_(param.grad, alpha=lr / batch_size)
            # None rather than zeros: the next backward then writes the gradient instead of adding to it.
            param.grad = None
