"""Values with tensors, kept in files for other processes of the run: the bytes of the tensors, and JSON; no pickle.

A value is a tensor, or what JSON can hold, or a dict, list or tuple of values. A dict may have any keys of JSON's. A
file has the tensors' bytes, then the JSON of everything else, then that JSON's length in `LENGTH` bytes.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

ALIGNED = 16  # bytes; the largest numbers, complex128, have so many
LENGTH = 8  # bytes, little-endian


def write(value: Any, path: Path) -> None:
    """Write a value; a file of this name is replaced, and whoever reads the old one keeps it.

    Raises:
        TypeError: it has a part that is neither a tensor nor JSON's.
    """
    written = path.with_name(f"{path.name}.new")
    with written.open("wb") as file:
        described = json.dumps(_described(value, file)).encode()
        file.write(described + len(described).to_bytes(LENGTH, "little"))
    os.replace(written, path)


def read(path: Path) -> Any:
    """Return what `write` wrote, on the CPU; its tensors are parts of one private map of the file."""
    size = path.stat().st_size
    mapped = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    length = int.from_bytes(mapped[-LENGTH:].numpy().tobytes(), "little")
    return _restored(json.loads(mapped[-LENGTH - length : -LENGTH].numpy().tobytes()), mapped)


def _described(value: Any, file: BinaryIO) -> list[Any]:
    """Write the tensors of a value; return its kind, and what JSON is to hold of it."""
    if isinstance(value, Tensor):
        file.write(bytes(-file.tell() % ALIGNED))
        start = file.tell()
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # A single number may have any stride, with which it has no bytes to view.
        file.write(plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().data)
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), start]
    if isinstance(value, dict):
        return ["dict", [[key, _described(part, file)] for key, part in value.items()]]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [_described(part, file) for part in value]]
    return ["value", value]


def _restored(described: list[Any], mapped: Tensor) -> Any:
    kind, content, *rest = described
    if kind == "tensor":
        shape, start = rest
        dtype = getattr(torch, content)
        return mapped[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
    if kind == "dict":
        return {key: _restored(part, mapped) for key, part in content}
    if kind == "value":
        return content
    parts = [_restored(part, mapped) for part in content]
    return tuple(parts) if kind == "tuple" else parts
