"""Trainers of a user's own small model that learn nothing, or little, and twins of them that learn."""

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
