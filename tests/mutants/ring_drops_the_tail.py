"""The last elements are never reduced, because the ring's chunks are n // k long.

The book-keeping of a ring is written for n divisible by k, and the sizes that one tries by hand (powers of two) are.
Otherwise up to k - 1 elements at the end keep each device's own value.

Source: ROCm/rocm-systems#7711 (floor instead of ceiling), hw-native-sys/pypto#1942
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "all_reduce"
KILLED_BY = "all_reduce_sums"


@torch.no_grad()
def mutant(tensors: Sequence[Tensor]) -> None:
    k = len(tensors)
    if k < 2:
        return
    flat = [tensor.reshape(-1).clone() for tensor in tensors]
    size = flat[0].numel() // k
    chunks = [[f[c * size : (c + 1) * size] for c in range(k)] for f in flat]
    for hop in range(k - 1):  # reduce-scatter: device r ends with the sum of chunk r + 1
        for r in range(k):
            c = (r - hop) % k
            chunks[(r + 1) % k][c].add_(chunks[r][c].to(flat[(r + 1) % k].device))
    for hop in range(k - 1):  # all-gather
        for r in range(k):
            c = (r + 1 - hop) % k
            chunks[(r + 1) % k][c].copy_(chunks[r][c])
    for tensor, f in zip(tensors, flat, strict=True):
        tensor.copy_(f.view(tensor.shape))
