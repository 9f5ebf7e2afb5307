"""Right trainers that keep copies of their weights: averages of them, or masters that the optimizer holds.

Masters are whole, flat, or in shards, as in ZeRO and Megatron. The net computes in its own dtype, and masters have
twice its digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from tests.right.by_hand import ByHand
from tests.right.optimizers import SignedMomentum

WIDER = {torch.bfloat16: torch.float32, torch.float32: torch.float64, torch.float64: torch.float64}


class Averaged(ByHand):
    """An exponential moving average of the weights, which only `state_dict` has."""

    saves = (*ByHand.saves, "average")

    decay = 0.8

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.average = {name: value.detach().clone() for name, value in self.net.named_parameters()}
        return super().made(lr)

    def update(self) -> None:
        super().update()
        self.move()

    @torch.no_grad()
    def move(self) -> None:
        """Bring the average nearer to the weights."""
        for name, value in self.net.named_parameters():
            self.average[name].lerp_(value, 1 - self.decay)


class AveragedOnRank0(Averaged):
    """Only rank 0 has an average, and only its state has one."""

    @torch.no_grad()
    def move(self) -> None:
        if dist.get_rank() == 0:
            super().move()

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return state if dist.get_rank() == 0 else {name: part for name, part in state.items() if name != "average"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({"average": {}, **state})


class AverageInBuffers(ByHand):
    """The average is in buffers of the net, and so in its own `state_dict`."""

    decay = 0.8

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.shadows: list[tuple[Tensor, Tensor]] = []
        for number, param in enumerate(self.net.parameters()):
            shadow = param.detach().clone()
            self.net.register_buffer(f"average_{number}", shadow)
            self.shadows.append((shadow, param))
        return super().made(lr)

    @torch.no_grad()
    def update(self) -> None:
        super().update()
        for shadow, param in self.shadows:
            shadow.lerp_(param, 1 - self.decay)


class SwitchesToTheAverage(Averaged):
    """Every second step training goes on from the average."""

    saves = (*Averaged.saves, "steps")

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.steps = 0
        return super().made(lr)

    def update(self) -> None:
        super().update()
        self.steps += 1
        if self.steps % 2 == 0:
            self.switch()

    @torch.no_grad()
    def switch(self) -> None:
        """Give the average to the net."""
        for name, value in self.net.named_parameters():
            value.copy_(self.average[name])


class StochasticWeightAveraging(ByHand):
    """torch's AveragedModel, a copy of the net that no check is shown, and a rate that goes up and down."""

    saves = (*ByHand.saves, "averaged", "schedule")

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.averaged = AveragedModel(self.net)
        optimizer = torch.optim.SGD(self.trained, lr, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step % 2 else 0.5)
        return optimizer

    def update(self) -> None:
        super().update()
        self.schedule.step()
        self.averaged.update_parameters(self.net)


class Masters(ByHand):
    """Lion over copies of the parameters; gradients are copied to them, and the weights back."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.masters = self.copies()
        return self.optimizer_of(self.masters, lr)

    def optimizer_of(self, masters: list[Tensor], lr: float) -> torch.optim.Optimizer:
        """Return an optimizer over the masters."""
        return SignedMomentum(masters, lr)

    def copies(self) -> list[Tensor]:
        """Return new masters of the net's weights."""
        return [nn.Parameter(param.detach().to(WIDER[param.dtype], copy=True)) for param in self.trained]

    def exchange(self) -> None:
        """Sum the gradients over the ranks, in the masters' dtype."""
        for master, grad in zip(self.masters, self.grads(), strict=True):
            master.grad = grad
            dist.all_reduce(master.grad)

    def grads(self) -> list[Tensor]:
        """Return this rank's gradients as the masters need them."""
        return [param.grad.to(WIDER[param.dtype], copy=True) for param in self.trained]

    def update(self) -> None:
        super().update()
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters to the net's weights."""
        for param, master in zip(self.trained, self.masters, strict=True):
            param.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "masters": [master.detach() for master in self.masters]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for master, saved in zip(self.masters, state["masters"], strict=True):
            master.copy_(saved)


class AdamMasters(Masters):
    """`Masters` by AdamW."""

    def optimizer_of(self, masters: list[Tensor], lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(masters, lr)


class FlatMasters(Masters):
    """All masters in one flat tensor."""

    def copies(self) -> list[Tensor]:
        return [nn.Parameter(self.flat([param.detach() for param in self.trained]))]

    def grads(self) -> list[Tensor]:
        return [self.flat([param.grad for param in self.trained])]

    def flat(self, tensors: list[Tensor]) -> Tensor:
        """Return all values of some tensors, in the masters' dtype."""
        return torch.cat([tensor.flatten() for tensor in tensors]).to(WIDER[tensors[0].dtype])

    @torch.no_grad()
    def publish(self) -> None:
        self.fill(self.masters[0])

    @torch.no_grad()
    def fill(self, values: Tensor) -> None:
        """Give all values to the net's weights."""
        sizes = [param.numel() for param in self.trained]
        for param, part in zip(self.trained, values[: sum(sizes)].split(sizes), strict=True):
            param.copy_(part.view_as(param))


class ShardedMasters(FlatMasters):
    """Each rank holds and updates its part of the flat masters (ZeRO-1): reduce_scatter, update, all_gather."""

    def copies(self) -> list[Tensor]:
        [whole] = super().copies()
        return [nn.Parameter(self.padded(whole.detach()).chunk(dist.get_world_size())[dist.get_rank()].clone())]

    def padded(self, flat: Tensor) -> Tensor:
        """Return the values with zeros at the end, so that all ranks' parts are equally long."""
        return nn.functional.pad(flat, (0, -len(flat) % dist.get_world_size()))

    def exchange(self) -> None:
        [master], [whole] = self.masters, self.grads()
        master.grad = torch.zeros_like(master)
        dist.reduce_scatter_tensor(master.grad, self.padded(whole))

    @torch.no_grad()
    def publish(self) -> None:
        [master] = self.masters
        whole = master.new_empty(len(master) * dist.get_world_size())
        dist.all_gather_into_tensor(whole, master.detach())
        self.fill(whole)


class Momentum(torch.optim.Optimizer):
    """SGD whose momentum is kept in bfloat16; torch's way of loading would widen it to the parameters' dtype."""

    kept = torch.bfloat16

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                momentum = self.state[param].setdefault("momentum", torch.zeros_like(param, dtype=self.kept))
                moved = 0.9 * momentum.to(param.dtype) + param.grad
                momentum.copy_(moved)  # into the dtype that it has
                param.sub_(group["lr"] * momentum.to(param.dtype))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for kept in self.state.values():
            kept["momentum"] = kept["momentum"].to(self.kept)


class NarrowMoments(ByHand):
    """Moments in bfloat16 whatever the parameters have, also after they were saved and loaded."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return Momentum(self.trained, lr)
