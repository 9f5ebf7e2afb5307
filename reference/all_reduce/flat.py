"""Tensors of any layout as vectors, for the algorithms that cut them into pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor


@contextmanager
def flattened(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Lend each tensor's elements as a vector (n,), in their logical order; what is written there reaches the tensor.

    The vector is a view where the layout allows one. Elsewhere it is a copy, written back at the end of the block, and
    not at all when the block raises.
    """
    vectors = [tensor.detach().reshape(-1) for tensor in tensors]
    yield vectors
    for tensor, vector in zip(tensors, vectors, strict=True):
        if vector.data_ptr() != tensor.data_ptr():
            tensor.copy_(vector.view(tensor.shape))
