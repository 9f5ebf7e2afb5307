"""Tells which samples of a minibatch a model was given, by their values (worker's side)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

Key = tuple[bytes, ...]

MOST = 64  # ways to find the given tensors in a minibatch that are tried


def rows_of(X: Sequence[Tensor], y: Sequence[Tensor], given: Sequence[Tensor]) -> list[int] | None:
    """Return the samples that a forward was given; None where that cannot be told.

    A tensor of X must be among what it was given, and others help. Of equal samples the first one is named, unless the
    forward was also given something else, which may tell them apart.

    Args:
        X, y: the tensors of the whole minibatch, each (n, ...).
        given: to the forward, in any order.
    """
    found = [(leaf, origins) for leaf in given if leaf.ndim and (origins := _origins(leaf, (*X, *y)))]
    only_these = len(found) == sum(leaf.ndim > 0 for leaf in given)
    parts = [leaf for leaf, _ in found]
    if len({len(leaf) for leaf in parts}) != 1:
        return None
    chosen = itertools.islice(itertools.product(*[origins for _, origins in found]), MOST)
    # Twice the same tensor comes last.
    for wholes in sorted(chosen, key=lambda wholes: len(wholes) - len({id(whole) for whole in wholes})):
        if any(whole is part for whole in wholes for part in X):
            keys = _keys(wholes)
            numbers = {key: number for number, key in reversed(list(enumerate(keys)))}
            rows = [numbers[key] for key in _keys(parts) if key in numbers]
            if len(rows) == len(parts[0]) and (only_these or len(numbers) == len(keys)):
                return rows
    return None


def _origins(leaf: Tensor, minibatch: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors of a minibatch that have all rows of a given one."""
    alike = [part for part in minibatch if (part.dtype, part.shape[1:]) == (leaf.dtype, leaf.shape[1:])]
    rows = set(_keys([leaf])) if alike else set()
    return [part for part in alike if rows <= set(_keys([part]))]


def _keys(tensors: Sequence[Tensor]) -> list[Key]:
    """Return the bytes of each sample's row of all tensors."""
    on_cpu = [tensor.detach().cpu() for tensor in tensors]
    return [tuple(row.contiguous().numpy().tobytes() for row in rows) for rows in zip(*on_cpu, strict=True)]
