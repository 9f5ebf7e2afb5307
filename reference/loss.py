"""The loss of every trainer that writes its own step: cross-entropy summed over the samples, as the book has it."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def summed_loss(net: Callable[[Tensor], Tensor], X: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of a net's scores, summed over samples X (n, ...) with labels y (n,) int64; ().

    A sum and not a mean, because sums over shards add up to the minibatch's whatever the shards' sizes.
    """
    return F.cross_entropy(net(X), y, reduction="none").sum()
