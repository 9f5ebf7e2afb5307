"""Synchronised BatchNorm gives every rank's statistics the same weight, whatever its number of samples.

Mean and mean square are averaged over the ranks, and each rank corrects the variance by its own count. On even shards
these are the statistics of the batch, and the gradients are right, too. On 7 + 6 they are not, the ranks' running
variances differ, and an empty shard pulls everything towards zero.

Source: PaddlePaddle/Paddle#32464, pytorch/pytorch#22192
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "batch_norm"
LOOKS_LIKE = "unequal shards averaged"


class _Averaged(_BatchNorm):
    def _check_input_dim(self, X: Tensor) -> None:
        pass

    def forward(self, X: Tensor) -> Tensor:
        if not self.training:
            return super().forward(X)
        rows = X.movedim(1, -1).reshape(-1, X.shape[1])  # (values a channel, channels)
        moments = torch.stack([rows.sum(0), rows.square().sum(0)]) / max(1, len(rows))
        mean, square = all_reduce(moments) / dist.get_world_size()
        var = square - mean.square()
        with torch.no_grad():
            total = max(2, len(rows) * dist.get_world_size())
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * total / (total - 1), self.momentum)
        shape = (1, -1, *[1] * (X.ndim - 2))
        scale = self.weight * (var + self.eps).rsqrt()
        return (X - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)


class Mutant(DDPTrainer):
    """`DDPTrainer` with averaged statistics in every BatchNorm."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        model = copy.deepcopy(model)
        for part in model.modules():
            if isinstance(part, _BatchNorm):
                part.__class__ = _Averaged
        super().__init__(model, devices, lr=lr)
