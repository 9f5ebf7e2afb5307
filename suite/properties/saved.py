"""What a trainer saves, as plain JSON: the parts of what `state_dict` returned by their paths (worker's side)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.properties.whole import whole

Leaf = dict[str, Any]
"""One part of a state: "kind", its dtype or type; "shape" of a tensor; "values", a list of numbers or a plain value."""

State = dict[str, Leaf]
"""The parts of a state by their paths, which are JSON lists of keys."""


def flattened(state: Any) -> State:
    """Return the parts of what `state_dict` returned; every rank must call it, because shards are gathered."""
    return {json.dumps(path): _leaf(value) for path, value in _parts(state, [])}


def changed(before: State, after: State) -> list[str]:
    """Return in words how the second of two states differs from the first; empty where they are alike to the bit."""
    words = []
    for path, leaf in before.items():
        other = after.get(path)
        if other is None:
            words.append(f"{shown(path)} is missing")
        elif leaf["kind"] != other["kind"]:
            words.append(f"{shown(path)} is {other['kind']} and was {leaf['kind']}")
        elif repr(leaf) != repr(other):
            words.append(f"{shown(path)} is another value")
    return words


def shown(path: str) -> str:
    """Return a path as a user writes it: ['optimizer']['state'][0]."""
    return "".join(f"[{key!r}]" for key in json.loads(path))


def _parts(value: Any, path: list[Any]) -> Iterator[tuple[list[Any], Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(part, [*path, key if isinstance(key, int) else str(key)])
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _parts(part, [*path, number])
    else:
        yield path, value


def _leaf(value: Any) -> Leaf:
    if isinstance(value, Tensor):
        [full] = whole([torch.view_as_real(value) if value.is_complex() else value])
        return {"kind": str(value.dtype), "shape": list(full.shape), "values": full.flatten().tolist()}
    plain = value if isinstance(value, bool | int | float | str | None) else repr(value)
    return {"kind": type(value).__name__, "shape": None, "values": plain}
