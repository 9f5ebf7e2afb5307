"""The base of most right trainers: gradients summed over the ranks by hand, one optimizer, one state.

Those below differ from it in the rate, or in what is trained at all, which depends on counts, groups and limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class ByHand:
    """AdamW on the mean cross-entropy; every parameter has a gradient on every rank, if only zeros.

    `saves` names the attributes that training goes on from, besides the state of torch's generator.
    """

    processes = "per-device"
    oracle: Literal["sgd", "self"] = "self"
    saves: tuple[str, ...] = ("net", "optimizer")

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
        return self.whole(self.part_of_loss(X, y, global_batch_size))

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Return this rank's part of the mean loss, (); the parts of all ranks add up to it."""
        return F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size

    def whole(self, loss: Tensor) -> Tensor:
        """Make the gradients of a loss, of zeros where a parameter is unused, and return the loss."""
        for param in self.trained:
            param.grad = torch.zeros_like(param)
        loss.backward()
        return loss.detach()

    def exchange(self) -> None:
        """Sum the gradients over the ranks."""
        for param in self.trained:
            dist.all_reduce(param.grad)

    def update(self) -> None:
        """Take the optimizer's step."""
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank goes on from."""
        return {name: _state(getattr(self, name)) for name in self.saves} | {"generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned on this rank."""
        torch.set_rng_state(state["generator"])
        for name in self.saves:
            own = getattr(self, name)
            if isinstance(own, torch.Generator):
                own.set_state(state[name])
            elif hasattr(own, "load_state_dict"):
                own.load_state_dict(state[name])
            else:
                setattr(self, name, state[name])

    @property
    def replicas(self) -> list[nn.Module]:
        return [self.net]


def _state(part: Any) -> Any:
    """Return what can be saved of an attribute."""
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.state_dict() if hasattr(part, "state_dict") else part


class WithReference(ByHand):
    """`ByHand` with the same update written plainly: torch's AdamW fed by one backward."""

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take the step with the whole minibatch at once."""
        loss = self.whole(F.cross_entropy(self.net(X), y))
        self.optimizer.step()
        return loss


class AccumulatesPlainly(WithReference):
    """Three micro-batches of any sizes; the plain update has one."""

    def backward(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        for param in self.trained:
            param.grad = torch.zeros_like(param)
        total = X.new_zeros(())
        for part, labels in zip(X.tensor_split(3), y.tensor_split(3), strict=True):
            loss = self.part_of_loss(part, labels, global_batch_size)
            loss.backward()
            total += loss.detach()
        return total


class ScheduledBySamples(ByHand):
    """The rate falls with the samples that all ranks have seen."""

    saves = (*ByHand.saves, "samples")

    samples = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.optimizer.param_groups[0]["lr"] = self.lr * 0.9**self.samples
        self.samples += self.counted(X, global_batch_size)
        return super().step(X, y, global_batch_size)

    def counted(self, X: Tensor, global_batch_size: int) -> int:
        """Return the samples of a step."""
        return global_batch_size


class CountsSteps(ByHand):
    """Keeps the number of its steps, by which a log and the names of checkpoints go."""

    saves = (*ByHand.saves, "steps")

    steps = 0

    def update(self) -> None:
        super().update()
        self.steps += 1


class WarmsUpFromZero(ByHand):
    """Two groups of parameters; the rate of the first begins at 0, so that a first step changes vectors alone."""

    saves = (*ByHand.saves, "schedule")

    def made(self, lr: float) -> torch.optim.Optimizer:
        matrices = [param for param in self.trained if param.ndim >= 2] or [torch.zeros(1)]
        vectors = [param for param in self.trained if param.ndim < 2]
        optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr)
        rates = [lambda step: min(1.0, step / 2), lambda step: min(1.0, (step + 1) / 2)]
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates)
        return optimizer

    def update(self) -> None:
        super().update()
        self.schedule.step()


class ClipsByNorm(ByHand):
    """Momentum, and a limit to the norm of the exchanged gradient."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.trained, lr, momentum=0.9, nesterov=True)

    def update(self) -> None:
        self.clip()
        super().update()

    def clip(self) -> None:
        """Limit the gradients."""
        nn.utils.clip_grad_norm_(self.trained, 0.1)


class ClipsPlainly(ClipsByNorm):
    """Clipping and Nesterov's momentum; the plain update computes the norm by itself."""

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take the step with the whole minibatch at once."""
        loss = self.whole(F.cross_entropy(self.net(X), y))
        norm = torch.cat([param.grad.flatten() for param in self.trained]).norm()
        for param in self.trained:
            param.grad *= min(1.0, 0.1 / (float(norm) + 1e-6))
        self.optimizer.step()
        return loss


class ClipsByUnit(ClipsByNorm):
    """Adaptive clipping (Brock et al. 2021, arXiv:2102.06171): each row by the norm of the row of the parameter."""

    @torch.no_grad()
    def clip(self) -> None:
        for param in self.trained:
            rows, slopes = (part.reshape(len(part), -1) for part in (param, param.grad))
            limit = 0.1 * rows.norm(dim=1, keepdim=True).clamp(min=1e-3)
            slopes.mul_((limit / slopes.norm(dim=1, keepdim=True).clamp(min=1e-6)).clamp(max=1))


class TrainsVectorsOnly(ByHand):
    """Matrices are frozen by the trainer, as in BitFit (Zaken et al. 2021, arXiv:2106.10199)."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        for param in self.trained:
            param.requires_grad_(param.ndim < 2)
        self.trained = [param for param in self.trained if param.requires_grad]
        return super().made(lr)
