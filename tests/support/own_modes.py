"""Models that compute something else while they train, and trainers whose step sets the mode."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.own_models import ByHand

WIDTH = 8


class Between(nn.Module):
    """Two layers with something between them: (n, 5) to (n, 2)."""

    def __init__(self, between: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(5, WIDTH), between, nn.Linear(WIDTH, 2)

    def forward(self, X: Tensor) -> Any:
        scores: Tensor = self.last(self.middle(self.first(X)))
        return scores

    def middle(self, h: Tensor) -> Tensor:
        """Map (n, WIDTH) to the same."""
        assert self.between is not None
        changed: Tensor = self.between(h)
        return changed


def batch_norm() -> Between:
    return Between(nn.BatchNorm1d(WIDTH))


def batch_norm_3d() -> Between:
    return Between(nn.Sequential(nn.Unflatten(1, (2, 2, 2, 1)), nn.BatchNorm3d(2, momentum=None), nn.Flatten()))


def without_statistics() -> Between:
    return Between(nn.BatchNorm1d(WIDTH, track_running_stats=False))


def instance_norm() -> Between:
    layer = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    return Between(nn.Sequential(nn.Unflatten(1, (2, 4)), layer, nn.Flatten()))


def dropout() -> Between:
    return Between(nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.2), nn.RReLU()))


class Recurrent(Between):
    """Has a recurrent layer that drops out between its two."""

    def __init__(self) -> None:
        super().__init__(nn.LSTM(2, 2, num_layers=2, dropout=0.5, batch_first=True))

    def middle(self, h: Tensor) -> Tensor:
        assert self.between is not None
        changed: Tensor = self.between(h.unflatten(1, (4, 2)))[0].flatten(1)
        return changed


class Functional(Between):
    """Drops out by functions, as nanoGPT does in its attention."""

    def middle(self, h: Tensor) -> Tensor:
        words = F.dropout(h, 0.25, self.training).unflatten(1, (1, 4, 2))
        dropped = 0.5 if self.training else 0.0
        return F.scaled_dot_product_attention(words, words, words, dropout_p=dropped).flatten(1)


class Deep(Between):
    """Leaves the layer out for some samples (stochastic depth by row)."""

    def middle(self, h: Tensor) -> Tensor:
        kept = torch.bernoulli(torch.full((len(h), 1), 0.5, dtype=h.dtype)) if self.training else 1
        return h + kept * h.tanh()


class OwnStatistics(Between):
    """Normalises by the statistics of the batch that it gets, while it trains."""

    def middle(self, h: Tensor) -> Tensor:
        return h - h.mean(0) if self.training else h


class Mixes(Between):
    """Mixes each sample with another one of its batch, while it trains."""

    def middle(self, h: Tensor) -> Tensor:
        return 0.7 * h + 0.3 * h[torch.randperm(len(h))] if self.training else h


class OfATask(Between):
    """Returns losses while it trains and scores otherwise, as detection models do."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(WIDTH))

    def forward(self, X: Tensor) -> Any:
        scores = super().forward(X)
        return {"scores": scores} if self.training else scores


class Trains(ByHand):
    """Right: its step sets training mode."""

    def forward(self, X: Any, y: Any) -> Tensor:
        self.net.train()
        return super().forward(X, y)


class Toggles(Trains):
    """Right: its step also looks at the model in eval mode."""

    def forward(self, X: Any, y: Any) -> Tensor:
        self.net.eval()
        with torch.no_grad():
            self.net(X)
        return super().forward(X, y)


class Synchronises(Trains):
    """Right: its batch normalisations are those of all ranks."""

    def __init__(self, model: nn.Module, devices: Any, *, lr: float) -> None:
        super().__init__(nn.SyncBatchNorm.convert_sync_batchnorm(model), devices, lr=lr)


class OfLosses(Trains):
    """Right, for a model that returns a dict while it trains."""

    def loss(self, output: Any, y: Tensor) -> Tensor:
        return super().loss(output["scores"], y)


class Apart:
    """Wrong: exchanges nothing."""

    def exchange(self) -> None:
        pass


class TrainsApart(Apart, Trains):
    """Wrong: exchanges nothing."""


class TogglesApart(Apart, Toggles):
    """Wrong: exchanges nothing."""


class SynchronisesApart(Apart, Synchronises):
    """Wrong: exchanges nothing."""


class OfLossesApart(Apart, OfLosses):
    """Wrong: exchanges nothing."""
