"""Parameters that were frozen are trained, because the copies on the devices all require a gradient.

``requires_grad_()`` on every copy is what makes the book's parameters leaves. Without frozen parameters it is right,
and fine-tuning still improves the loss: only a comparison of the frozen weights tells.

Source: pytorch/torchtitan#3886; lecture notebook, row 0-params
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = ""


class Mutant(Scratch):
    """`Scratch` with the book's way to make leaves."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        for net in self.nets:
            net.requires_grad_()
