"""Gradients are exchanged in float16: three digits are left, and what is below 6e-8 is lost.

One line, a communication hook, halves the traffic. Training mostly survives it and the curves lie on each other, which
is the published justification. In float64 and float32 it is an error of 1 in 2,000 and not of rounding.

Source: pytorch/pytorch#106395 (unstable at 384 GPUs); torch.distributed.algorithms.ddp_comm_hooks.default_hooks
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = "lower precision | less precision"


class Mutant(DDPTrainer):
    """`DDPTrainer` with a compressing hook."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.net.register_comm_hook(None, fp16_compress_hook)
