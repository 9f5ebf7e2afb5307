"""Trainers of a user's own small model that learn nothing, or little, models with a mode, and twins of both."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.learners import Pair, overlapping_blobs

LR = 0.05


def one_class() -> tuple[Pair, Pair]:
    """The blobs as one class, for models with one output."""
    (X, y), (test_X, test_y) = overlapping_blobs()
    return (X, 0 * y), (test_X, 0 * test_y)


def one_output() -> nn.Module:
    return nn.Linear(5, 1)


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def frozen() -> nn.Module:
    return two_layers().requires_grad_(False)


def frozen_below() -> nn.Module:
    net = two_layers()
    net[0].requires_grad_(False)
    return net


class HasIdleParts(nn.Module):
    """Of its trained parameters one is unused, one detached, one times 0; two rows of a table are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.rows = nn.Embedding(8, 2)
        self.unused = nn.Parameter(torch.ones(2))
        self.cut = nn.Parameter(torch.ones(2))
        self.muted = nn.Parameter(torch.ones(2))

    def forward(self, X: Tensor) -> Tensor:
        scores: Tensor = self.layer(X) + self.rows((X[:, 0] > 0).long()) + self.cut.detach() + 0 * self.muted
        return scores


class ByHand:
    """Right: sums the ranks' gradients by hand, and takes one step of SGD."""

    processes = "per-device"
    oracle = "self"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        self.net = model.to(devices[0])
        for tensor in self.net.state_dict().values():
            dist.broadcast(tensor, src=0)
        self.optimizer = self.make_optimizer(list(self.net.parameters()), lr)

    def make_optimizer(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, reduction="sum")

    def forward(self, X: Any, y: Any) -> Tensor:
        """The summed loss of this rank's samples."""
        return self.loss(self.net(X), y)

    def step(self, X: Any, y: Any, global_batch_size: int) -> Tensor:
        self.optimizer.zero_grad()
        part = self.forward(X, y) / global_batch_size
        if part.requires_grad:
            self.backward(part)
        self.exchange()
        self.update()
        return part.detach()

    def backward(self, part: Tensor) -> None:
        part.backward()

    def exchange(self) -> None:
        for parameter in self.net.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)

    def update(self) -> None:
        self.optimizer.step()

    @property
    def replicas(self) -> list[nn.Module]:
        return [self.net]


class WithLogits(ByHand):
    """Right for one output: the loss depends on it."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, y[:, None].to(output.dtype), reduction="sum")


class HoldsOthers(ByHand):
    """Wrong: its optimizer holds a copy of the parameters."""

    def make_optimizer(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        others = copy.deepcopy(parameters)
        for one in others:
            one.grad = torch.ones_like(one)
        return torch.optim.SGD(others, lr)


class Detached(ByHand):
    """Wrong: its loss has lost the model."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return super().loss(output.detach(), y)


class NeverSteps(ByHand):
    """Wrong: it accumulates, and never updates."""

    def update(self) -> None:
        pass


class DecaysOnly(ByHand):
    """Wrong: the loss is times 0, and weight decay moves the parameters."""

    def make_optimizer(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr, weight_decay=0.1)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return 0 * super().loss(output, y)


class Decays(DecaysOnly):
    """Right: Adam with weight decay."""

    loss = ByHand.loss


class TooSmall(ByHand):
    """Wrong: its updates are below the rounding of the parameters."""

    def make_optimizer(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, 1e-30)


class UndoesItAlone(ByHand):
    """Wrong on several ranks: the step is taken back."""

    def update(self) -> None:
        before = [parameter.detach().clone() for parameter in self.net.parameters()]
        super().update()
        if dist.get_world_size() > 1:
            with torch.no_grad():
                for parameter, was in zip(self.net.parameters(), before, strict=True):
                    parameter.copy_(was)


class WarmsUp(ByHand):
    """Right: the rate is 0 in the first three steps."""

    until = 3.0

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: float(step >= self.until))

    def update(self) -> None:
        super().update()
        self.schedule.step()


class NeverWarm(WarmsUp):
    """Wrong: the rate stays 0."""

    until = float("inf")


class WarmsUpOnce(WarmsUp):
    """Right: the rate is 0 in the first step."""

    until = 1.0


class Scales(ByHand):
    """Right: its loss scale is too large at first, and torch's scaler leaves out steps until it is not."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-4)

    def backward(self, part: Tensor) -> None:
        self.scaler.scale(1000 * part.float()).backward()

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Forth(torch.optim.Optimizer):
    """Turns the sign of every parameter, so that two steps end where they began."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.neg_()


class ComesBack(ByHand):
    """Right: after two steps its parameters are where they were."""

    def make_optimizer(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return Forth(parameters, lr)


class HoldsHalf(ByHand):
    """Leaves the last bias out of its optimizer."""

    def make_optimizer(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters[:-1], lr)


class Replaces(ByHand):
    """Right, without an optimizer of torch's: puts new parameters in the places of the old ones."""

    def update(self) -> None:
        for module in self.net.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter((parameter - LR * parameter.grad).detach()))


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
