"""scikit-learn's handwritten digits, enlarged to 28x28: real images without a download."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from reference.data.dataset import Dataset

_TRAIN = 1_437


def digits(data_root: Path) -> Dataset:
    """Return the 1,797 images of 8x8, enlarged bilinearly: 1,437 to train and 360 to test, always the same ones.

    They come with scikit-learn, else ImportError (the test set of Alpaydin and Kaynak, UCI, 1998).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the digits data set comes with scikit-learn: pip install scikit-learn") from error
    bunch = load_digits()
    small = torch.as_tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16  # (1797, 1, 8, 8), 0 to 16 before
    X = F.interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
    y = torch.as_tensor(bunch.target, dtype=torch.int64)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:_TRAIN], order[_TRAIN:]
    return Dataset("digits", X[train], y[train], X[test], y[test])
