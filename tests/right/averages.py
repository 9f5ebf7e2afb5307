"""Right trainers that keep an average of their weights: in the state, in a buffer of the net, or to train from."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from tests.right.by_hand import ByHand


class Averaged(ByHand):
    """An exponential moving average of the weights, which only `state_dict` has."""

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

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.average = state["average"]


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

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.steps = state["steps"]


class StochasticWeightAveraging(ByHand):
    """torch's AveragedModel, a copy of the net that no check is shown, and a rate that goes up and down."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.averaged = AveragedModel(self.net)
        optimizer = torch.optim.SGD(self.trained, lr, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step % 2 else 0.5)
        return optimizer

    def update(self) -> None:
        super().update()
        self.schedule.step()
        self.averaged.update_parameters(self.net)

    def state_dict(self) -> dict[str, Any]:
        more = {"averaged": self.averaged.state_dict(), "schedule": self.schedule.state_dict()}
        return {**super().state_dict(), **more}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.averaged.load_state_dict(state["averaged"])
        self.schedule.load_state_dict(state["schedule"])
