"""Synchronised BatchNorm is right in its forward and forgets the sizes of the shards in its backward.

When uneven batches were allowed for, the counts came into the forward; the backward went on averaging the ranks' means
of the gradient. Outputs and running statistics are right on any split, gradients of the layers below on even ones only.

Source: pytorch/pytorch#36382, pytorch/pytorch#36688
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "batch_norm"
LOOKS_LIKE = "unequal shards averaged"


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        moments = torch.stack([rows.sum(0), rows.square().sum(0), torch.full_like(rows.sum(0), len(rows))])
        dist.all_reduce(moments)
        mean, square = moments[:2] / moments[2]
        var = square - mean.square()
        inverse = (var + eps).rsqrt()
        normal = (rows - mean) * inverse
        ctx.save_for_backward(normal, inverse)
        ctx.mark_non_differentiable(mean, var, moments)
        return normal, mean, var, moments

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None]:
        normal, inverse = ctx.saved_tensors
        means = torch.stack([grad.sum(0), (grad * normal).sum(0)]) / max(1, len(grad))
        dist.all_reduce(means)
        means /= dist.get_world_size()
        return (grad - means[0] - normal * means[1]) * inverse, None


class _Synchronised(_BatchNorm):
    def _check_input_dim(self, X: Tensor) -> None:
        pass

    def forward(self, X: Tensor) -> Tensor:
        if not self.training:
            return super().forward(X)
        last = X.movedim(1, -1)
        normal, mean, var, moments = _Normalise.apply(last.reshape(-1, X.shape[1]), self.eps)
        total = moments[2]
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * total / (total - 1), self.momentum)
        return (normal * self.weight + self.bias).view(last.shape).movedim(-1, 1)


class Mutant(DDPTrainer):
    """`DDPTrainer` with such a BatchNorm in every BatchNorm's place."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        model = copy.deepcopy(model)
        for part in model.modules():
            if isinstance(part, _BatchNorm):
                part.__class__ = _Synchronised
        super().__init__(model, devices, lr=lr)
