"""Minibatches of more than one tensor: a nest is a tensor, or a dict, tuple or list of nests.

The first axis of every tensor in a nest is the samples. A tensor is a nest of one, so each function here also takes the
plain X and y of a classifier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Nest = Any
"""A Tensor, dict, tuple or list, to any depth; Python has no type for it that a tensor's own methods pass."""


def leaves(nest: Nest) -> list[Tensor]:
    """Return the tensors of a nest, in the order of its keys and elements."""
    return pytree.tree_leaves(nest)


def each(change: Callable[[Tensor], Tensor], nest: Nest) -> Nest:
    """Return a nest of the same structure with every tensor changed."""
    return change(nest) if isinstance(nest, Tensor) else pytree.tree_map(change, nest)  # a tree costs microseconds


def like(structure: Nest, tensors: list[Tensor]) -> Nest:
    """Return a nest with the structure of another one, and these tensors in the order of `leaves`."""
    return pytree.tree_unflatten(tensors, pytree.tree_structure(structure))


def samples(nest: Nest) -> int:
    """Return the number of samples in a nest; ValueError where there is no tensor, or first axes differ."""
    if isinstance(nest, Tensor):
        return len(nest)
    sizes = sorted({len(leaf) for leaf in leaves(nest)})
    if len(sizes) != 1:
        raise ValueError(f"the tensors of a minibatch have {sizes} samples: the first axis of each must be the samples")
    return sizes[0]


def tokens(nest: Nest) -> int:
    """Return the tokens of one sample: the positions of the first int64 tensor (n, positions); 0 without any."""
    of_texts = (leaf.shape[1] for leaf in leaves(nest) if leaf.dtype == torch.int64 and leaf.ndim == 2)
    return next(of_texts, 0)


def take(nest: Nest, which: slice | Tensor) -> Nest:
    """Return some of a nest's samples: a view for a slice, a copy for a tensor of indices (n,)."""
    return each(lambda leaf: leaf.index_select(0, which) if isinstance(which, Tensor) else leaf[which], nest)


def move(nest: Nest, device: torch.device | str, dtype: torch.dtype | None = None) -> Nest:
    """Return a nest on a device, its floating tensors in `dtype` where one is given."""
    return each(lambda leaf: leaf.to(device, dtype if leaf.is_floating_point() else None), nest)


def labels(y: Nest) -> Tensor:
    """Return the class labels in y: its first int64 tensor, else ValueError. Weights and masks may come with them."""
    for leaf in leaves(y):
        if leaf.dtype == torch.int64:
            return leaf
    raise ValueError(f"y is {described(y)}: class labels must be int64")


def described(nest: Nest) -> str:
    """Return the dtypes and shapes of a nest in words: "float32 (n, 3)", "{'mean': float32 (n,)}"."""
    if isinstance(nest, Tensor):
        shape = ", ".join(["n", *map(str, nest.shape[1:])]) + ("," if nest.ndim == 1 else "")
        return f"{str(nest.dtype).removeprefix('torch.')} ({shape})"
    if isinstance(nest, dict):
        return f"{{{', '.join(f'{key!r}: {described(part)}' for key, part in nest.items())}}}"
    return f"[{', '.join(map(described, nest))}]"


def check(name: str, nest: Nest) -> None:
    """Refuse what is not a nest of tensors with samples.

    Messages have its name, and that of a part by its key or position, such as ``train_X['tokens']``.

    Raises:
        TypeError: a part is neither a tensor nor a dict, tuple or list.
        ValueError: a part is empty, or a tensor without axes.
    """
    if isinstance(nest, Tensor):
        if nest.ndim == 0:
            raise ValueError(f"{name} is a tensor without axes: its first axis must be the samples")
        return
    if type(nest) not in (dict, tuple, list):  # a type of the user's own could not be read in another process
        raise TypeError(f"{name} is a {type(nest).__name__}: it must be a tensor, or a dict, tuple or list of tensors")
    if not nest:
        raise ValueError(f"{name} is an empty {type(nest).__name__}: it must hold at least one tensor")
    for key, part in nest.items() if isinstance(nest, dict) else enumerate(nest):
        check(f"{name}[{key!r}]", part)
