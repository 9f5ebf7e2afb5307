"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747): 60,000 and 10,000 images of 28x28, ten classes."""

from __future__ import annotations

from pathlib import Path

from reference.data.dataset import Dataset
from reference.data.idx import IDX_FILES, has_idx_files, raw_folder, read_dataset


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
