"""Values with tensors, kept as files for other processes of the run: JSON, and the bytes of each tensor; no pickle.

A value is a tensor, or what JSON can hold, or a dict, list or tuple of values. A dict may have any keys of JSON's.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def write(value: Any, path: Path) -> None:
    """Write a value to `path`, and its tensors next to it.

    Raises:
        TypeError: it has a part that is neither a tensor nor JSON's.
    """
    files = (path.with_name(f"{path.name}-{number}") for number in itertools.count())
    path.write_text(json.dumps(_described(value, files)), encoding="utf-8")


def read(path: Path) -> Any:
    """Return what `write` wrote, on the CPU; its tensors are private maps of their files."""
    return _restored(json.loads(path.read_text(encoding="utf-8")), path.parent)


def _described(value: Any, files: Iterator[Path]) -> list[Any]:
    """Return the kind of a value, and what JSON is to hold of it."""
    if isinstance(value, Tensor):
        file = next(files)
        value.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).numpy().tofile(file)
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), file.name]
    if isinstance(value, dict):
        return ["dict", [[key, _described(part, files)] for key, part in value.items()]]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [_described(part, files) for part in value]]
    return ["value", value]


def _restored(described: list[Any], folder: Path) -> Any:
    kind, content, *rest = described
    if kind == "tensor":
        shape, name = rest
        dtype, size = getattr(torch, content), math.prod(shape)
        if not size:  # nothing to map
            return torch.empty(shape, dtype=dtype)
        return torch.from_file(str(folder / name), shared=False, size=size, dtype=dtype).view(shape)
    if kind == "dict":
        return {key: _restored(part, folder) for key, part in content}
    if kind == "value":
        return content
    parts = [_restored(part, folder) for part in content]
    return tuple(parts) if kind == "tuple" else parts
