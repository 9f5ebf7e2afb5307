"""Minibatches as scripts have them: tensors in dicts, lists, tuples, and what behaves like them.

`plain` makes what can be kept in a file, `united` joins the minibatches of several ranks, and `filled` gives what was
kept the form that a script expects. Not covered: objects that are no containers, such as graphs.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (str, bytes, int, float, bool, type(None))
IGNORED = -100  # cross_entropy leaves out what has this label


class NotKept(TypeError):
    """A part of a minibatch is neither a tensor nor a container of them."""


def parts_of(tree: Any) -> dict[Any, Any] | None:
    """Return the parts of a container by key or by place; None for anything else."""
    if hasattr(tree, "keys") and hasattr(tree, "__getitem__"):  # what behaves like a dict may not iterate over its keys
        return {key: tree[key] for key in tree.keys()}  # noqa: SIM118
    return dict(enumerate(tree)) if isinstance(tree, (list, tuple)) else None


def _with_parts(tree: Any, parts: dict[Any, Any]) -> Any:
    """Return a container like a tree with other parts."""
    if isinstance(tree, (list, tuple)):
        if hasattr(tree, "_fields"):  # a named tuple
            return type(tree)(*parts.values())
        return tuple(parts.values()) if isinstance(tree, tuple) else list(parts.values())
    if type(tree) is dict:
        return parts
    new = copy.copy(tree)
    for key, value in parts.items():
        new[key] = value
    return new


def leaves(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree, in its order."""
    if isinstance(tree, Tensor):
        yield tree
    for part in (parts_of(tree) or {}).values():
        yield from leaves(part)


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a tree of the same form, with changed tensors."""
    if isinstance(tree, Tensor):
        return change(tree)
    parts = parts_of(tree)
    return tree if parts is None else _with_parts(tree, {key: mapped(part, change) for key, part in parts.items()})


def doubled(tree: Any) -> Any:
    """Return a tree whose floating-point tensors are float64."""
    return mapped(tree, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def plain(tree: Any) -> Any:
    """Return a copy of a tree on the CPU, of tensors, dicts, lists, texts and numbers.

    Raises:
        NotKept: it has something else.
    """
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, PLAIN):
        return tree
    parts = parts_of(tree)
    if parts is None:
        raise NotKept(f"{type(tree).__module__}.{type(tree).__qualname__}")
    kept = {key: plain(part) for key, part in parts.items()}
    return list(kept.values()) if isinstance(tree, (list, tuple)) else kept


def united(parts: Sequence[Any]) -> tuple[Any, bool]:
    """Return the minibatches of several ranks as one, and whether rows had to be padded to one length.

    Args:
        parts: plain trees of one form, in the order of the ranks.
    """
    counts = [_rows(part) for part in parts]
    padded = [False]
    return _united(parts, counts, padded), padded[0]


def filled(template: Any, tree: Any) -> Any:
    """Return a plain tree in the form of a template, such as a named tuple, on its devices."""
    if isinstance(tree, Tensor):
        return tree.to(template.device, copy=True) if isinstance(template, Tensor) else tree.clone()
    parts, like = parts_of(tree), parts_of(template)
    if parts is None:
        return tree
    if like is None or isinstance(template, (list, tuple)) != isinstance(tree, list):
        template, like = tree, {}
    last = list(like.values())[-1:] if isinstance(tree, list) else []  # a union may be longer
    return _with_parts(template, {key: filled(like.get(key, *last or [part]), part) for key, part in parts.items()})


def row_digests(tree: Any) -> list[str]:
    """Return a digest of each row: of all tensors that have as many rows as the first one."""
    tensors = [tensor.detach().cpu() for tensor in leaves(tree) if tensor.dim()]
    count = len(tensors[0]) if tensors else 0
    flat = [_bytes(tensor).reshape(count, -1) for tensor in tensors if len(tensor) == count and tensor.numel()]
    return [digest_of(b"".join(tensor[row].numpy().tobytes() for tensor in flat)) for row in range(count)]


def digest(tensor: Tensor) -> str:
    """Return a digest of a tensor's bits."""
    return digest_of(_bytes(tensor.detach().cpu()).numpy().tobytes())


def digest_of(content: bytes) -> str:
    """Return a digest that two different contents do not share."""
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def _rows(tree: Any) -> int:
    return next((len(tensor) for tensor in leaves(tree) if tensor.dim()), 0)


def _united(parts: Sequence[Any], counts: Sequence[int], padded: list[bool]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        of_rows = all(part.dim() and len(part) == count for part, count in zip(parts, counts, strict=True))
        shared = all(part.shape == first.shape and torch.equal(part, first) for part in parts)
        return first if not first.dim() or (shared and not of_rows) else _concatenated(parts, padded)
    if isinstance(first, dict):
        return {key: _united([part[key] for part in parts], counts, padded) for key in first}
    if isinstance(first, list):
        # A list with an entry for each row, of texts or of images of many sizes, is longer in the union.
        if not _has_column(parts, counts) and all(
            len(part) == count for part, count in zip(parts, counts, strict=True)
        ):
            return [entry for part in parts for entry in part]
        return [_united(list(each), counts, padded) for each in zip(*parts, strict=False)]
    return first


def _has_column(parts: Sequence[list[Any]], counts: Sequence[int]) -> bool:
    """Return whether an entry of the lists is a column of the minibatch: it has as many rows on every rank."""
    return any(
        all(_rows(entry) == count and count for entry, count in zip(entries, counts, strict=True))
        for entries in zip(*parts, strict=False)
    )


def _concatenated(parts: Sequence[Tensor], padded: list[bool]) -> Tensor:
    widest = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    filler = IGNORED if any(not p.is_floating_point() and bool((p == IGNORED).any()) for p in parts) else 0
    wide = []
    for part in parts:
        missing = [size for at in reversed(range(len(widest))) for size in (0, widest[at] - part.shape[at + 1])]
        padded[0] = padded[0] or any(missing)
        wide.append(nn.functional.pad(part, missing, value=filler) if any(missing) else part)
    return torch.cat(wide)
