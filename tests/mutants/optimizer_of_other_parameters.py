"""The optimizer holds the parameters from before the model was wrapped, so the model that trains never changes.

Wrapping, sharding or moving makes new tensors, and the optimizer was built too early. Gradients and their norms look
right, the loss is finite, and all devices agree, because nothing happens on any.

Source: huggingface/accelerate#3256, pytorch/pytorch#149205
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from tests.support.step_trainers import WholeStep

KIND = "trainer"
KILLED_BY = "trajectory"
LOOKS_LIKE = "holds other parameters | nothing was learned"


class Mutant(WholeStep):
    """`WholeStep` on a copy of the model that its optimizer has."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.net = copy.deepcopy(self.net)
        self.trained = [param for param in self.net.parameters() if param.requires_grad]
