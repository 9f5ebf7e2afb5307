"""The DataParallel tutorial's network: one linear layer from 5 features to 2."""

from __future__ import annotations

from torch import Tensor, nn


class Toy(nn.Module):
    """Linear 5 -> 2, 12 parameters (PyTorch's data parallelism tutorial)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, 5) to (n, 2)."""
        output: Tensor = self.fc(X)
        return output
