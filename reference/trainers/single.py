"""Training on one device with the whole batch: the oracle that every other trainer is compared with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from reference import generators
from reference.loss import summed_loss, token_loss
from reference.nest import Nest, samples
from reference.sgd import sgd_


class Single:
    """Plain SGD on one device; devices beyond the first are ignored.

    The loss is the mean cross-entropy over the samples, or, where y is a dict as for `DDPTokensTrainer`,
    `reference.loss.token_loss`.
    """

    processes: ClassVar[Literal["one", "per-device"]] = "one"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        self.net = copy.deepcopy(model).to(devices[0])
        self.lr = lr

    def step(self, X: Nest, y: Nest, global_batch_size: int) -> Tensor:
        """Update the net with the summed gradient, divided by the batch size; see `Trainer.step`."""
        classes = isinstance(y, Tensor)
        loss = summed_loss(self.net, X, y) if classes else token_loss(self.net(X), y) * samples(y)
        torch.autograd.backward(loss)
        sgd_(self.net.parameters(), self.lr, global_batch_size)
        return loss.detach() / global_batch_size

    def state_dict(self) -> dict[str, Any]:
        """Return the net's state and that of the generators."""
        return {"net": self.net.state_dict(), "generators": generators.states(self.net)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.net.load_state_dict(state["net"])
        generators.restore(self.net, state["generators"])

    @property
    def replicas(self) -> list[nn.Module]:
        """The one module."""
        return [self.net]
