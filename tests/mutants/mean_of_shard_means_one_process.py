"""Every shard's mean loss has the same weight, so samples of a smaller shard count more: 13 = 7 + 6.

The loss is computed inside the replicas of DataParallel, comes back as a vector, one value a device, and is averaged
by ``loss.mean()``. It is right when k divides the batch, hence on every batch but the last of an epoch.

Source: huggingface/transformers#608
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference.trainers.data_parallel import DataParallelTrainer, data_parallel

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = "mean of the shards' means | ranks' own means | must return its"


class _WithLoss(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, X: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(X), y)


class Mutant(DataParallelTrainer):
    """`DataParallelTrainer` with the loss inside the module."""

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.close()
        self.net = data_parallel(_WithLoss(self.module), devices)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.net(X, y).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
