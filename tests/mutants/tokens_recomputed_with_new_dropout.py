"""A block that is recomputed in the backward draws a new dropout mask, so the gradient is not that of the forward.

Activation checkpointing must restore the generator's state of the forward. Switched off to save time, nothing fails.

Source: allenai/OLMo-core#828
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reference.trainers.ddp import DDPTokensTrainer

KIND = "trainer"
KILLED_BY = "dropout"
LOOKS_LIKE = "recomputed without"


class Mutant(DDPTokensTrainer):
    """`DDPTokensTrainer` that recomputes the model's blocks."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        for block in self.net.module.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
