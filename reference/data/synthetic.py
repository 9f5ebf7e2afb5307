"""A substitute for Fashion-MNIST that needs no download: same sizes, same file format, learnable by LeNet.

Each class is a smooth random picture. A sample is its class's picture, shifted by up to two pixels, mixed with another
class's picture and with noise, so that no network classifies all samples correctly and accuracies can differ.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from reference.data.dataset import Dataset
from reference.data.fashion_mnist import IDX_FILES, has_idx_files, raw_folder, read_own, write_idx

_CLASSES = 10
_SHIFTS = 5  # positions along each axis
_CHUNK = 2_000  # samples made at once: 6 MB of floats


def synthetic(data_root: Path, *, train: int = 60_000, test: int = 10_000, seed: int = 0) -> Dataset:
    """Read the data set from ``data_root/synthetic``, which git ignores; if its files do not exist, make them first.

    The seed determines every byte, and `train` and `test` are the numbers of samples to make.

    Raises:
        OSError: the folder cannot be written.
        ValueError: a file exists and is not a complete IDX file.
    """
    root = data_root / "synthetic"
    if not has_idx_files(root):
        _write(root, train, test, seed)
    return read_own("synthetic", root)


def draw(n: int, bank: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return n images (n, 28, 28) and their labels (n,), both uint8, from a bank as of `picture_bank`."""
    classes, shifts = bank.shape[:2]
    label = torch.randint(classes, (n,), generator=generator)
    other = torch.randint(classes, (n,), generator=generator)
    shift = torch.randint(shifts, (2, n), generator=generator)
    share = 0.5 * torch.rand(n, 1, 1, generator=generator)
    noise = 0.25 * torch.randn(n, *bank.shape[2:], generator=generator)
    image = (1 - share) * bank[label, shift[0]] + share * bank[other, shift[1]] + noise
    return image.clamp_(0, 1).mul_(255).round_().to(torch.uint8), label.to(torch.uint8)


def picture_bank(generator: torch.Generator) -> Tensor:
    """Return the classes' pictures at every shift, (10, 25, 28, 28) float32 in [0, 1]."""
    coarse = torch.randn(_CLASSES, 1, 6, 6, generator=generator)
    size = 28 + _SHIFTS - 1
    smooth = F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False).squeeze(1)
    # Half of each picture is dark, as in Fashion-MNIST, because LeNet's first plateau depends on the images' mean.
    pictures = smooth.clamp(0, 1.5) / 1.5
    windows = pictures.unfold(1, 28, 1).unfold(2, 28, 1)  # (10, 5, 5, 28, 28)
    return windows.flatten(1, 2)


def _write(root: Path, train: int, test: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    bank = picture_bank(generator)
    files: list[Tensor] = []
    for n in (train, test):
        chunks = [draw(min(_CHUNK, n - start), bank, generator) for start in range(0, n, _CHUNK)]
        files += [torch.cat(part) for part in zip(*chunks, strict=True)]
    try:
        raw_folder(root).mkdir(parents=True, exist_ok=True)
        (root / ".gitignore").write_text("*\n", encoding="utf-8")  # data_root is in a user's own repository
        for name, values in zip(IDX_FILES, files, strict=True):
            write_idx(raw_folder(root) / name, values)
    except OSError as error:
        raise OSError(
            f"the synthetic data set cannot be written to {raw_folder(root)} ({error}); "
            "make the folder writable, free 55 MB, or choose another data root"
        ) from error
