"""Right trainers of one process for all devices."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference import nest
from reference.scatter import split_batch


class _Replicas:
    """A net on each device."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        self.devices, self.lr = list(devices), lr
        self.nets = [copy.deepcopy(model).to(device) for device in devices]

    @property
    def replicas(self) -> list[nn.Module]:
        return self.nets


class ParameterServer(_Replicas):
    """One net has the optimizer and gets all gradients; its weights go to the other devices after every step."""

    processes = "one"
    oracle: Literal["sgd", "self"] = "self"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.server = self.nets[0]
        self.optimizer = self.made([param for param in self.server.parameters() if param.requires_grad], lr)

    def made(self, trained: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(trained, lr)

    def zero(self) -> None:
        """Have gradients of zeros."""
        for param in self.server.parameters():
            param.grad = torch.zeros_like(param) if param.requires_grad else None

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        total = X.new_zeros(())
        self.zero()
        for net, part, labels in zip(self.nets, *split_batch(X, y, self.devices), strict=False):
            total += self.pushed(net, part, labels, global_batch_size).to(total.device)
        self.optimizer.step()
        with torch.no_grad():
            for net in self.nets[1:]:
                for param, given in zip(net.parameters(), self.server.parameters(), strict=True):
                    param.copy_(given)
        return total

    def pushed(self, net: nn.Module, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Add a shard's gradient to the server's, and return its part of the loss."""
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        trained = [param for param in net.parameters() if param.requires_grad]
        grads = torch.autograd.grad(loss, trained, allow_unused=True)
        served = [param for param in self.server.parameters() if param.requires_grad]
        for param, grad in zip(served, grads, strict=True):
            if grad is not None:
                param.grad += grad.to(param.device)  # type: ignore[operator]
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        """Return what training goes on from."""
        return {
            "nets": [net.state_dict() for net in self.nets],
            "optimizer": self.optimizer.state_dict(),
            "generator": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        for net, saved in zip(self.nets, state["nets"], strict=True):
            net.load_state_dict(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["generator"])


class ServesMomentum(ParameterServer):
    """`ParameterServer` with Nesterov's momentum, and the same update written plainly."""

    def made(self, trained: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(trained, lr, momentum=0.9, nesterov=True, weight_decay=0.01)

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take the step with the whole minibatch at once."""
        self.zero()
        loss = F.cross_entropy(self.server(X), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class FlatViews(_Replicas):
    """All parameters of a device are views of one flat tensor, which is updated as a whole, by plain SGD."""

    processes = "one"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.flats = [self.flattened(net) for net in self.nets]

    def flattened(self, net: nn.Module) -> Tensor:
        """Put the trained parameters of a net side by side, and return the tensor that has them all."""
        trained = [param for param in net.parameters() if param.requires_grad]
        flat = torch.cat([param.detach().flatten() for param in trained])
        flat.grad = torch.zeros_like(flat)
        sizes = [param.numel() for param in trained]
        for param, part, grad in zip(trained, flat.split(sizes), flat.grad.split(sizes), strict=True):
            param.data = part.view_as(param)
            param.grad = grad.view_as(param)
        return flat

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        for flat in self.flats:
            flat.grad.zero_()  # type: ignore[union-attr]
        losses = []
        for net, part, labels in zip(self.nets, *split_batch(X, y, self.devices), strict=False):
            losses.append(F.cross_entropy(net(part), labels, reduction="sum") / global_batch_size)
            losses[-1].backward()
        first = self.flats[0].device
        total = torch.stack([flat.grad.to(first) for flat in self.flats]).sum(0)  # type: ignore[union-attr]
        with torch.no_grad():
            for flat in self.flats:
                flat.sub_(self.lr * total.to(flat.device))
        return torch.stack([loss.detach().to(first) for loss in losses]).sum()


class ClipsSamples(_Replicas):
    """As differential privacy does without its noise: every sample's gradient is clipped before they are summed."""

    processes = "one"
    oracle: Literal["sgd", "self"] = "self"

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        total = X.new_zeros(())
        summed = [torch.zeros_like(param) for param in self.nets[0].parameters()]
        for net, part, labels in zip(self.nets, *split_batch(X, y, self.devices), strict=False):
            trained = [param for param in net.parameters() if param.requires_grad]
            places = [place for place, param in enumerate(net.parameters()) if param.requires_grad]
            for row in range(nest.samples(part)):
                loss = F.cross_entropy(net(part[row : row + 1]), labels[row : row + 1])
                grads = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
                norm = torch.stack([grad.norm() for grad in grads]).norm()
                for place, grad in zip(places, grads, strict=True):
                    summed[place] += (grad * (0.5 / (norm + 1e-6)).clamp(max=1)).to(summed[place].device)
                total += loss.detach().to(total.device) / global_batch_size
        with torch.no_grad():
            for net in self.nets:
                for param, grad in zip(net.parameters(), summed, strict=True):
                    param.sub_(self.lr * grad.to(param.device) / global_batch_size)
        return total
