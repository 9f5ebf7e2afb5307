"""A data set of four tensors, which are checked when it is made."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path

import torch
import torch.utils.data
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Training and test samples with their labels, all on one device.

    Args:
        name: as shown in reports.
        train_X: samples (n, ...), floating; the built-in sets are (n, 1, 28, 28) float32 in [0, 1].
        train_y: labels (n,), int64.
        test_X: as ``train_X``.
        test_y: as ``train_y``.
        idx_root: the folder from which torchvision's FashionMNIST reads the same samples, if there is one.

    Raises:
        ValueError: no training or no test samples, numbers of samples and labels that differ, samples that are not
            floating, or labels that are not int64.
    """

    name: str
    train_X: Tensor
    train_y: Tensor
    test_X: Tensor
    test_y: Tensor
    idx_root: Path | None = None

    def __post_init__(self) -> None:
        for part, X, y in (("train", self.train_X, self.train_y), ("test", self.test_X, self.test_y)):
            if len(X) != len(y) or len(X) == 0:
                raise ValueError(
                    f"data set {self.name!r}: {part}_X has {len(X)} samples and {part}_y has {len(y)} labels: "
                    "there must be as many of both, and at least one"
                )
            if not X.is_floating_point():
                raise ValueError(f"data set {self.name!r}: {part}_X is {X.dtype}: make it floating, X.float() / 255")
            if y.dtype != torch.int64:
                raise ValueError(f"data set {self.name!r}: {part}_y is {y.dtype}: make it int64, y.long()")

    def to(self, device: torch.device | str) -> Dataset:
        """Return the data set with its tensors on ``device``."""
        names = ("train_X", "train_y", "test_X", "test_y")
        return dataclasses.replace(self, **{name: getattr(self, name).to(device) for name in names})

    @cached_property
    def train_samples(self) -> torch.utils.data.Dataset[tuple[Tensor, ...]]:
        """The training samples one by one, as the book's loader reads them: from image files, through ToTensor.

        Without files the samples come from the tensors, which is less work for the loader.
        """
        if self.idx_root is None:
            return torch.utils.data.TensorDataset(self.train_X.cpu(), self.train_y.cpu())
        from torchvision.datasets import FashionMNIST
        from torchvision.transforms import ToTensor

        samples: torch.utils.data.Dataset[tuple[Tensor, ...]] = FashionMNIST(self.idx_root, transform=ToTensor())
        return samples
