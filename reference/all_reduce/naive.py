"""The book's all-reduce: add everything up on the first device, then copy the sum back to the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def naive_(tensors: Sequence[Tensor]) -> None:
    """Replace every tensor's values by the sum over all of them, in order, so that the copies are bit-equal.

    The first device receives and sends (k - 1) times the tensor, the others send and receive it once.

    Args:
        tensors: one a device, of equal shapes and dtypes; none at all is allowed. The values are written into these
            very tensors. The book's code rebinds the slots of the list instead, so that a list made for the call
            takes the result with it.

    Raises:
        ValueError: shapes or dtypes differ.
    """
    for rank, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape or tensor.dtype != tensors[0].dtype:
            raise ValueError(
                f"tensor {rank} is {tuple(tensor.shape)} {tensor.dtype} and tensor 0 is {tuple(tensors[0].shape)} "
                f"{tensors[0].dtype}: an all_reduce needs equal shapes and dtypes on every device"
            )
    for tensor in tensors[1:]:
        tensors[0].add_(tensor.to(tensors[0].device))
    for tensor in tensors[1:]:
        tensor.copy_(tensors[0])
