"""DistributedDataParallel with batch normalisation over all ranks: equal to one device on nets with BatchNorm too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from reference.sync_batch_norm import convert
from reference.trainers.ddp import DDPTrainer


class DDPSyncBNTrainer(DDPTrainer):
    """`DDPTrainer` whose BatchNorm layers use the whole minibatch's mean and variance, however it is split.

    Running statistics are those of one device on every rank. Each such layer costs an exchange in the forward and one
    in the backward, which nothing overlaps. A minibatch with one value per channel is refused, as by torch.
    """

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(convert(model), devices, lr=lr)
