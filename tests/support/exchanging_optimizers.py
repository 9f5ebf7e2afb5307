"""Trainers that exchange their gradients, or change them, inside of the optimizer: right ones, and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class InAHook:
    """A hook of the optimizer exchanges the gradients."""

    processes = "per-device"
    oracle: Literal["sgd", "self"] = "self"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        self.net = model.to(devices[0])
        for tensor in self.net.state_dict().values():
            dist.broadcast(tensor, src=0)
        self.trained = [param for param in self.net.parameters() if param.requires_grad]
        self.optimizer = self.made(lr)

    def made(self, lr: float) -> torch.optim.Optimizer:
        """Return the optimizer."""
        optimizer = torch.optim.AdamW(self.trained, lr)
        optimizer.register_step_pre_hook(lambda *_: self.exchange())
        return optimizer

    def exchange(self) -> None:
        """Sum the gradients over the ranks."""
        for param in self.trained:
            dist.all_reduce(param.grad)

    def backward(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Make the gradients of this rank's part of the mean loss, and return that."""
        for param in self.trained:
            param.grad = torch.zeros_like(param)
        loss = F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size
        loss.backward()
        return loss.detach()

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = self.backward(X, y, global_batch_size)
        self.optimizer.step()
        return loss

    @property
    def replicas(self) -> list[nn.Module]:
        return [self.net]


class _Exchanging(torch.optim.Adam):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                dist.all_reduce(param.grad)
        return super().step(closure)


class InASubclass(InAHook):
    """The optimizer's own class does it, as in Horovod."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return _Exchanging(self.trained, lr)


class InAClosure(InAHook):
    """The optimizer makes the gradients itself."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.trained, lr)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        losses: list[Tensor] = []

        def closure() -> float:
            losses.append(self.backward(X, y, global_batch_size))
            self.exchange()
            return 0.0

        self.call(closure)
        for param in self.trained:
            param.grad = None
        return losses[-1]

    def call(self, closure: Callable[[], float]) -> None:
        """Call the optimizer."""
        self.optimizer.step(closure)


class InAClosureTwice(InAClosure):
    """Wrong: summed and multiplied by the world size, which Adam divides out again but for its eps."""

    def exchange(self) -> None:
        super().exchange()
        torch._foreach_mul_([param.grad for param in self.trained], dist.get_world_size())


class InAHookTwice(InAHook):
    """Wrong in the same way."""

    def exchange(self) -> None:
        super().exchange()
        torch._foreach_mul_([param.grad for param in self.trained], dist.get_world_size())


class NamedClosure(InAClosure):
    """The closure is given by its name."""

    def call(self, closure: Callable[[], float]) -> None:
        self.optimizer.step(closure=closure)
