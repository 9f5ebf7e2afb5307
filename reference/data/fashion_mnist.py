"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747): 60,000 and 10,000 images of 28x28, ten classes.

The synthetic set is written in the same four files. Their format, IDX, is that of LeCun's MNIST page: a magic number
that contains the type and the number of axes, the axes' lengths as big-endian 32-bit integers, then the bytes.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

import numpy
import torch
from torch import Tensor

from reference.data.dataset import Dataset

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
UNSIGNED_BYTE = 0x08


def raw_folder(root: Path) -> Path:
    """Return the folder under ``root`` in which torchvision's FashionMNIST looks for its files."""
    return root / "FashionMNIST" / "raw"


def has_idx_files(root: Path) -> bool:
    """Return whether all four files exist, unpacked."""
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
    return _scaled(name, root, *(values for part in parts for values in (part.data, part.targets)))


def read_own(name: str, root: Path) -> Dataset:
    """Read four files that `write_idx` wrote, as `read_dataset` does but without importing torchvision (seconds)."""
    return _scaled(name, root, *(read_idx(raw_folder(root) / file) for file in IDX_FILES))


def _scaled(name: str, root: Path, train_X: Tensor, train_y: Tensor, test_X: Tensor, test_y: Tensor) -> Dataset:
    """Make a data set of bytes: images (n, 28, 28) as (n, 1, 28, 28) float32 in [0, 1], labels (n,) as int64."""
    images = [X.unsqueeze(1).float().div(255) for X in (train_X, test_X)]
    return Dataset(name, images[0], train_y.long(), images[1], test_y.long(), idx_root=root)


def read_idx(path: Path) -> Tensor:
    """Return the uint8 tensor in a file that `write_idx` wrote.

    Raises:
        ValueError: the file is truncated or was not written by `write_idx`.
    """
    content = path.read_bytes()
    try:
        _, kind, axes = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{axes}I", content, 4)
        if kind != UNSIGNED_BYTE:
            raise ValueError(f"type {kind:#x}")
        values = numpy.frombuffer(content, dtype=numpy.uint8, offset=4 + 4 * axes).reshape(shape)
    except (struct.error, ValueError) as error:
        raise ValueError(
            f"{path} is not a complete IDX file of bytes ({error}); remove it and generate the data again"
        ) from error
    return torch.from_numpy(values.copy())


def write_idx(path: Path, values: Tensor) -> None:
    """Write a uint8 tensor as an IDX file, atomically, also when two processes write the same file.

    Raises:
        ValueError: ``values`` has another dtype.
        OSError: the folder cannot be written, or the disk is full; no partial file remains.
    """
    if values.dtype != torch.uint8:
        raise ValueError(f"values are {values.dtype}: only uint8 is written")
    header = struct.pack(f">HBB{values.ndim}I", 0, UNSIGNED_BYTE, values.ndim, *values.shape)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(header)
            file.write(values.contiguous().numpy().tobytes())
        os.chmod(temporary, 0o644)  # only the owner may read what mkstemp makes, but a data root may be shared
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def fashion_mnist(data_root: Path) -> Dataset:
    """Read the data set through torchvision, without downloading anything.

    Raises:
        FileNotFoundError: one of the four files is missing; the message names the folder and the download command.
        ValueError: a file is not a complete IDX file.
    """
    if not has_idx_files(data_root):
        raise FileNotFoundError(
            f"Fashion-MNIST is not under {data_root}: {raw_folder(data_root)} must hold {', '.join(IDX_FILES)}; "
            f"get them with: python -m reference.data download --data-root {data_root}"
        )
    return read_dataset("fashion-mnist", data_root)


def download(data_root: Path) -> Path:
    """Download the files through torchvision, unless they exist already, and return their folder.

    Raises:
        OSError: there is no connection, or the folder cannot be written; the message says what to do.
    """
    from torchvision.datasets import FashionMNIST

    try:
        FashionMNIST(data_root, download=True)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise OSError(
            f"Fashion-MNIST could not be downloaded to {data_root} ({reason}); check the connection and the folder, "
            f"copy {', '.join(IDX_FILES)} into {raw_folder(data_root)} by hand, or use the synthetic data set"
        ) from error
    return raw_folder(data_root)
