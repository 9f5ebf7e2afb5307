"""The learning rate is multiplied by the world size inside the trainer, after the caller has done so.

The linear rule belongs to whoever chooses the batch; a wrapper that knows the world size applies it "for convenience",
also when the global batch stays as it is. It is right on one device, and a warm-up hides it for some epochs.

Source: sql-machine-learning/elasticdl#2299, mala-project/mala#422
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "times the right gradient | summed over the devices"


class Mutant(DDPTrainer):
    """`DDPTrainer` with the linear rule inside."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr * dist.get_world_size())
