"""Trainers whose step does more than it has to, beside the right ones: gradients are right, counters are not.

`docs.evidence.counters` has them counted. All need a process for each device.
"""

from __future__ import annotations

import contextlib
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional as F

from reference.trainers.ddp import DDPTrainer


class Accumulates(DDPTrainer):
    """Right: four micro-batches, of which only the last one exchanges."""

    exchanged = 1

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update once, with the gradient of all micro-batches."""
        self.optimizer.zero_grad()
        total = X.new_zeros(())
        for number, (part, labels) in enumerate(zip(X.tensor_split(4), y.tensor_split(4), strict=True)):
            with contextlib.nullcontext() if number >= 4 - self.exchanged else self.net.no_sync():
                loss = F.cross_entropy(self.net(part), labels, reduction="sum") / global_batch_size
                torch.autograd.backward(loss * dist.get_world_size())
            total += loss.detach()
        self.optimizer.step()
        return total


class ExchangesEveryMicroBatch(Accumulates):
    """Has lost its `no_sync`."""

    exchanged = 4


class SmallBuckets(DDPTrainer):
    """Has buckets of at most 20 kB where torch's default is 25 MB."""

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.net = nn.parallel.DistributedDataParallel(self.net.module, bucket_cap_mb=0.02)


class ReadsTheLoss(DDPTrainer):
    """Reads its loss on the host in every step."""

    losses: ClassVar[list[float]] = []

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update as DDP does."""
        loss = super().step(X, y, global_batch_size)
        self.losses.append(loss.item())
        return loss


class ByHand(DDPTrainer):
    """Right, without buckets: every parameter's gradient is summed over the ranks by a call of its own."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update with gradients that are exchanged after the backward pass."""
        net = self.net.module
        self.optimizer.zero_grad()
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        loss.backward()
        for parameter in self.exchanged():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        return loss.detach()

    def exchanged(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients to exchange, in order."""
        return list(self.net.module.parameters())


class ExchangesOneTwice(ByHand):
    """Exchanges the last parameter twice, and divides its gradient by k, so that it stays right."""

    def exchanged(self) -> list[nn.Parameter]:
        """Return the parameters, the last one twice."""
        parameters = super().exchanged()
        if (gradient := parameters[-1].grad) is not None:
            gradient /= dist.get_world_size()
        return [*parameters, parameters[-1]]


class ExchangesBfloat16(DDPTrainer):
    """Exchanges its gradients in bfloat16."""

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.net.register_comm_hook(None, default_hooks.bf16_compress_hook)


class Alternates(DDPTrainer):
    """Not reproducible: reads its loss in every second step."""

    steps = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update as DDP does."""
        loss = super().step(X, y, global_batch_size)
        self.steps += 1
        return loss if self.steps % 2 else torch.tensor(loss.item())


class LogsOnRankZero(DDPTrainer):
    """Reads its loss on rank 0 alone, as many loops do; the ranks' counts differ, and are the same in every step."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update as DDP does."""
        loss = super().step(X, y, global_batch_size)
        if dist.get_rank() == 0:
            loss.item()
        return loss
