"""The four IDX files of an MNIST-like data set: write them, find them, read them with torchvision's loader.

The format is that of LeCun's MNIST page: a magic number that gives the type and the number of axes, the axes' lengths
as big-endian 32-bit integers, then the bytes.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from reference.data.dataset import Dataset

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def raw_folder(root: Path) -> Path:
    """Return the folder under ``root`` in which torchvision's FashionMNIST looks for its files."""
    return root / "FashionMNIST" / "raw"


def has_idx_files(root: Path) -> bool:
    """Say whether all four files are there, unpacked."""
    return all((raw_folder(root) / name).is_file() for name in IDX_FILES)


def read_dataset(name: str, root: Path) -> Dataset:
    """Read the four files under ``root`` as torchvision does, and scale the bytes as ToTensor does.

    Raises:
        ValueError: a file is missing, truncated or not IDX.
    """
    from torchvision.datasets import FashionMNIST

    try:
        parts = [FashionMNIST(root, train=train, download=False) for train in (True, False)]
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"a file in {raw_folder(root)} is not a complete IDX file ({type(error).__name__}: {error}); "
            "remove the folder and download or generate the data again"
        ) from error
    (train_X, train_y), (test_X, test_y) = ((p.data.unsqueeze(1).float().div(255), p.targets.long()) for p in parts)
    return Dataset(name, train_X, train_y, test_X, test_y, idx_root=root)


def write_idx(path: Path, values: Tensor) -> None:
    """Write a uint8 tensor as an IDX file: whole or not at all, also when two processes write it at once.

    Args:
        path: in a folder that exists.
        values: uint8, any shape.

    Raises:
        ValueError: another dtype.
        OSError: the folder cannot be written, or the disk is full; nothing is left behind.
    """
    if values.dtype != torch.uint8:
        raise ValueError(f"values are {values.dtype}: only uint8 is written")
    unsigned_byte = 0x08
    header = struct.pack(f">HBB{values.ndim}I", 0, unsigned_byte, values.ndim, *values.shape)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(header)
            file.write(values.contiguous().numpy().tobytes())
        os.chmod(temporary, 0o644)  # mkstemp gives the file to its owner alone; a data root is shared
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
