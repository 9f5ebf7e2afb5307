"""The base of most right trainers of this folder: gradients summed over the ranks by hand, one optimizer, one state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class ByHand:
    """AdamW on the mean cross-entropy; every parameter has a gradient on every rank, if only zeros."""

    processes = "per-device"
    oracle: Literal["sgd", "self"] = "self"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        self.net, self.lr = model.to(devices[0]), lr
        for tensor in self.net.state_dict().values():
            dist.broadcast(tensor, src=0)
        self.trained = [param for param in self.net.parameters() if param.requires_grad]
        self.optimizer = self.made(lr)

    def made(self, lr: float) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.trained, lr)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = self.backward(X, y, global_batch_size)
        self.exchange()
        self.update()
        return loss

    def backward(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Make the gradients of this rank's part of the loss, and return that."""
        for param in self.trained:
            param.grad = torch.zeros_like(param)
        loss = self.part_of_loss(X, y, global_batch_size)
        loss.backward()
        return loss.detach()

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Return this rank's part of the mean loss, (); the parts of all ranks add up to it."""
        return F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size

    def exchange(self) -> None:
        """Sum the gradients over the ranks."""
        for param in self.trained:
            dist.all_reduce(param.grad)

    def update(self) -> None:
        """Take the optimizer's step."""
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank goes on from."""
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned on this rank."""
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["generator"])

    @property
    def replicas(self) -> list[nn.Module]:
        return [self.net]


class WithReference(ByHand):
    """`ByHand` with the same update written plainly: torch's AdamW fed by one backward."""

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take the step with the whole minibatch at once."""
        for param in self.trained:
            param.grad = torch.zeros_like(param)  # a parameter that is unused decays, too
        loss = F.cross_entropy(self.net(X), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()
