"""DistributedDataParallel with batch normalisation over all ranks: equal to one device also on nets with BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from reference.sync_batch_norm import convert
from reference.trainers.ddp import DDPTrainer


class DDPSyncBNTrainer(DDPTrainer):
    """`DDPTrainer` whose BatchNorm layers use the whole minibatch's mean and variance, however it is split.

    On every rank the running statistics are those of one device. Each such layer costs one exchange in the forward and
    one in the backward, which do not overlap with computation. As torch does, a minibatch with one value per channel
    raises.
    """

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(convert(model), devices, lr=lr)
