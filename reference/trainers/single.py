"""Training on one device with the whole batch: the oracle that every other trainer is compared with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from reference.loss import summed_loss
from reference.sgd import sgd_


class Single:
    """Plain SGD on one device; devices beyond the first are ignored."""

    processes: ClassVar[Literal["one", "per-device"]] = "one"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        self.net = copy.deepcopy(model).to(devices[0])
        self.lr = lr

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update the net with the summed gradient, divided by the batch size; see `Trainer.step`."""
        loss = summed_loss(self.net, X, y)
        torch.autograd.backward(loss)
        sgd_(self.net.parameters(), self.lr, global_batch_size)
        return loss.detach() / global_batch_size

    @property
    def replicas(self) -> list[nn.Module]:
        """The one module."""
        return [self.net]
