"""A net that is recomputed in the backward draws new dropout masks, so the gradient is not that of the forward.

Activation checkpointing restores the generator's state of the forward unless that is switched off to save time. Each
mask by itself is a valid one, and nothing fails.

Source: allenai/OLMo-core#828
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "dropout"
LOOKS_LIKE = "recomputed without"


class Mutant(DDPTrainer):
    """`DDPTrainer` that recomputes the whole model."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        net = self.net.module
        net.forward = partial(checkpoint, net.forward, use_reentrant=False, preserve_rng_state=False)
