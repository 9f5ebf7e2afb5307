"""Tensors of any strides as vectors, for the algorithms that cut them into chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor


@contextmanager
def flattened(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Give each tensor's elements as a vector (n,), in their logical order; writing to it changes the tensor.

    The vector is a view where the strides allow one. Otherwise it is a copy that is written back at the end of the
    block, unless the block raises.
    """
    vectors = [tensor.detach().reshape(-1) for tensor in tensors]
    yield vectors
    for tensor, vector in zip(tensors, vectors, strict=True):
        if vector.data_ptr() != tensor.data_ptr():
            tensor.copy_(vector.view(tensor.shape))
