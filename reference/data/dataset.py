"""A data set of four tensors, or nests of tensors, which are checked when it is made."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path

import torch
import torch.utils.data
from torch import Tensor

from reference import nest
from reference.nest import Nest

_OF_X = (torch.int64, torch.bool)  # tokens and masks; images in bytes have to be scaled


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Training and test samples with their labels, all on one device.

    Args:
        name: as shown in reports.
        train_X: samples (n, ...), floating, or int64 and bool for tokens and masks, or a nest of such tensors; the
            built-in sets are (n, 1, 28, 28) float32 in [0, 1].
        train_y: what the loss takes: class labels (n,), int64; targets (n, ...) of any dtype, for a trainer with a loss
            of its own; or a nest of such tensors, such as labels with one value for each token, weights and masks.
        test_X, test_y: as ``train_X`` and ``train_y``.
        idx_root: the folder from which torchvision's FashionMNIST reads the same samples, if there is one.

    Raises:
        TypeError: a part is no tensor, dict, tuple or list.
        ValueError: no training or no test samples, numbers of samples and labels that differ, or a dtype of X that is
            not among these.
    """

    name: str
    train_X: Nest
    train_y: Nest
    test_X: Nest
    test_y: Nest
    idx_root: Path | None = None

    def __post_init__(self) -> None:
        for part, X, y in (("train", self.train_X, self.train_y), ("test", self.test_X, self.test_y)):
            nest.check(f"data set {self.name!r}: {part}_X", X)
            nest.check(f"data set {self.name!r}: {part}_y", y)
            sizes = [sorted({len(leaf) for leaf in nest.leaves(both)}) for both in (X, y)]
            if sizes[0] != sizes[1] or len(sizes[0]) != 1 or sizes[0] == [0]:
                of_X, of_y = (" or ".join(map(str, each)) for each in sizes)
                raise ValueError(
                    f"data set {self.name!r}: {part}_X has {of_X} samples and {part}_y has {of_y} labels: "
                    "there must be as many of both, and at least one"
                )
            for leaf in nest.leaves(X):
                if not leaf.is_floating_point() and leaf.dtype not in _OF_X:
                    remedy = "make it floating, X.float() / 255, or int64 where these are tokens"
                    raise ValueError(f"data set {self.name!r}: {part}_X is {leaf.dtype}: {remedy}")

    def to(self, device: torch.device | str) -> Dataset:
        """Return the data set with its tensors on ``device``."""
        names = ("train_X", "train_y", "test_X", "test_y")
        return dataclasses.replace(self, **{name: nest.move(getattr(self, name), device) for name in names})

    @cached_property
    def train_samples(self) -> torch.utils.data.Dataset[tuple[Tensor, ...]]:
        """The training samples one by one, as the book's loader reads them: from image files, through ToTensor.

        Without files the samples come from the tensors, which is less work for the loader. A sample is a tuple of one
        element for each tensor of ``(train_X, train_y)``.
        """
        if self.idx_root is None:
            return torch.utils.data.TensorDataset(*[leaf.cpu() for leaf in nest.leaves((self.train_X, self.train_y))])
        from torchvision.datasets import FashionMNIST
        from torchvision.transforms import ToTensor

        samples: torch.utils.data.Dataset[tuple[Tensor, ...]] = FashionMNIST(self.idx_root, transform=ToTensor())
        return samples
