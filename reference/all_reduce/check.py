"""What an all-reduce takes: its type, checks before it changes anything, and tensors as vectors to cut into chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor

AllReduce = Callable[[Sequence[Tensor]], None]
"""Takes one tensor per device, of equal shapes and dtypes, and replaces each by the sum of all, in place.

There may be no tensors. Raises ValueError as `check` does, and nothing is changed then.
"""


def check(tensors: Sequence[Tensor]) -> None:
    """Raise ValueError if tensors, one per device, cannot be summed in place, as `check_alike` and `check_apart` do."""
    check_alike(tensors)
    check_apart({f"tensor {rank}": tensor for rank, tensor in enumerate(tensors)})


def check_alike(tensors: Sequence[Tensor]) -> None:
    """Raise ValueError if tensors differ in shape or dtype, because torch would broadcast or cast them silently."""
    for rank, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape or tensor.dtype != tensors[0].dtype:
            raise ValueError(
                f"tensor {rank} is {tuple(tensor.shape)} {tensor.dtype} and tensor 0 is {tuple(tensors[0].shape)} "
                f"{tensors[0].dtype}: an all_reduce needs equal shapes and dtypes on every device"
            )


def check_apart(named: Mapping[str, Tensor]) -> None:
    """Raise ValueError if one place in memory holds several elements: a tensor is expanded, or two of them overlap.

    Views of one storage are accepted if their spans, from the first to the last element, do not overlap. This quick
    test also refuses interleaved views, such as the columns of one matrix, and sparse tensors. Not detected: a single
    tensor that overlaps itself by strides other than 0, which only ``as_strided`` makes. Messages use the names.
    """
    names = list(named)
    spans: list[tuple[str, int, int, int]] = []
    for number, (name, tensor) in enumerate(named.items()):
        if tensor.layout is not torch.strided:
            raise ValueError(
                f"{name} has layout {tensor.layout}: an all_reduce needs dense tensors, as to_dense() gives"
            )
        if tensor.numel() == 0:
            continue
        reach = 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            if size > 1 and stride == 0:
                raise ValueError(
                    f"{name} is expanded, shape {tuple(tensor.shape)} with strides {tensor.stride()}: a sum in place "
                    f"needs a place in memory for each element, as contiguous() gives"
                )
            reach += (size - 1) * stride
        start = tensor.data_ptr()
        spans.append((str(tensor.device), start, start + (reach + 1) * tensor.element_size(), number))
    spans.sort()
    for (device, _, end, number), (next_device, next_start, _, next_number) in pairwise(spans):
        if device == next_device and next_start < end:
            first, second = sorted((number, next_number))
            raise ValueError(
                f"{names[first]} and {names[second]} overlap in memory: a sum in place would count what they share "
                f"twice; give every device a tensor of its own, as clone() makes"
            )


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
