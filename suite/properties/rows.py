"""Tells which samples of a minibatch a model was given, by their values (worker's side)."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def rows_of(X: list[Tensor], given: list[Any]) -> list[int] | None:
    """Return the samples of X that a forward was given, by their values; None where it was given something else.

    Of equal samples the first one is named.
    """
    pairs, unused = [], list(X)
    for leaf in given:
        if not isinstance(leaf, Tensor):
            continue
        alike = [w for w in unused if (w.dtype, w.shape[1:]) == (leaf.dtype, leaf.shape[1:])]
        if leaf.ndim == 0 or not alike:
            return None
        unused = [w for w in unused if w is not alike[0]]
        pairs.append((alike[0], leaf.detach().cpu()))
    if not pairs:
        return None
    numbers: dict[tuple[bytes, ...], int] = {}
    for number in range(len(X[0])):
        numbers.setdefault(tuple(_bytes(w[number]) for w, _ in pairs), number)
    rows = [numbers.get(tuple(_bytes(leaf[row]) for _, leaf in pairs)) for row in range(len(pairs[0][1]))]
    return None if None in rows else [row for row in rows if row is not None]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()
