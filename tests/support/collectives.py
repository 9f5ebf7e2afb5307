"""Shared by the tests of collectives: tensors of any layout, numbers that add up exactly or not, counts of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from reference.all_reduce.traffic import count_traffic

Layout = Callable[[Tensor], Tensor]

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
# Eight numbers of at most 15 add up to at most 120, and int8 and bfloat16 hold every whole number up to there.
LARGEST = 15
STRANGER = 99


def plain(values: Tensor) -> Tensor:
    """Copy with the last axis first in memory and without gaps."""
    return values.clone(memory_format=torch.contiguous_format)


def transposed(values: Tensor) -> Tensor:
    """Copy with the axes reversed in memory."""
    reversed_axes = list(range(values.ndim))[::-1]
    return plain(values.permute(reversed_axes)).permute(reversed_axes)


def gapped(values: Tensor) -> Tensor:
    """Copy with a `STRANGER` in memory after every element."""
    pairs = torch.full((*values.shape, 2), STRANGER, dtype=values.dtype)
    pairs[..., 0] = values
    return pairs[..., 0]


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
layouts = st.lists(st.sampled_from([plain, transposed, gapped]), min_size=8, max_size=8)


def whole_numbers(shape: Sequence[int], k: int, seed: int, dtype: torch.dtype) -> list[Tensor]:
    """Return k tensors of small whole numbers, exactly summable in every dtype and order."""
    generator = torch.Generator().manual_seed(seed)
    low = 0 if dtype is torch.uint8 else -LARGEST
    return [torch.randint(low, LARGEST + 1, tuple(shape), generator=generator).to(dtype) for _ in range(k)]


def reals(n: int, k: int, seed: int, dtype: torch.dtype) -> list[Tensor]:
    """Return k vectors of numbers of both signs, from 2^-4 to 2^4 in size."""
    generator = torch.Generator().manual_seed(seed)
    exponents, signs = torch.rand(2, k, n, generator=generator, dtype=torch.float64)
    return list((torch.sign(signs - 0.5) * 2 ** (8 * exponents - 4)).to(dtype))


def traffic_of(exchange: Callable[[], object], k: int) -> tuple[list[int], list[int]]:
    """Return the bytes that each of k devices sends and receives."""
    with count_traffic() as traffic:
        exchange()
    return [traffic.sent_bytes(i) for i in range(k)], [traffic.received_bytes(i) for i in range(k)]


def chunk(i: int, n: int, k: int) -> int:
    """Return how many of n elements chunk i (mod k) has: the first n mod k have one more."""
    return n // k + (i % k < n % k)
