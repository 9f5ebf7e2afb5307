"""BatchNorm's running statistics stay at their initial values, because every replica is thrown away after the step.

Replicas are made anew for each step and update their own copies of the buffers. nn.DataParallel keeps at least those of
its first replica. Parameters are right, training mode never reads the statistics, and evaluation is garbage.

Source: pytorch/pytorch#1051
"""

from __future__ import annotations

import copy

import torch.nn.functional as F
from torch import Tensor, nn

from reference.scatter import gather, split_batch
from reference.sgd import sgd_
from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "batch_norm"
LOOKS_LIKE = "statistics are lost"


class Mutant(Scratch):
    """One module, copied to the devices for every step."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        devices = self.per_device.devices
        X_shards, y_shards = split_batch(X, y, devices)
        copies = [copy.deepcopy(self.nets[0]).to(device) for device in devices[: len(X_shards)]]
        losses = [
            F.cross_entropy(net(shard), labels, reduction="sum")
            for net, shard, labels in zip(copies, X_shards, y_shards, strict=True)
        ]
        for loss in losses:
            loss.backward()
        for param, *clones in zip(self.device_params[0], *(net.parameters() for net in copies), strict=True):
            for grad in (clone.grad.to(param.device) for clone in clones if clone.grad is not None):
                param.grad = grad if param.grad is None else param.grad + grad
        sgd_(self.device_params[0], self.lr, global_batch_size)
        return gather([loss.detach() for loss in losses], devices[0]).sum() / global_batch_size

    @property
    def replicas(self) -> list[nn.Module]:
        return self.nets[:1]
