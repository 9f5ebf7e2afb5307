"""Data parallelism as in Gluon: a net on many devices, `split_and_load`, and a trainer that exchanges in its step.

Every replica uses its own shard's batch statistics and its own dropout masks, and keeps its own buffers. Shards differ
by at most one sample, and a device is idle only when there are fewer samples than devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference import nest
from reference.all_reduce import AllReduce
from reference.gluon import Net, Trainer, split_and_load
from reference.loss import summed_loss
from reference.per_device import PerDevice
from reference.scatter import check_labels, gather
from reference.trainers.scratch import Scratch


class GluonTrainer(Scratch):
    """`reference.gluon` with uneven shards, by MXNet's newer rule.

    Idle devices, and devices whose shard does not use a parameter, contribute zeros to the exchange. A parameter that
    no shard uses stays as it is. A lazy model, whose shapes are not known yet, raises DeferredInitializationError.
    """

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        net = Net(model, devices)
        self.nets = net.replicas
        self.per_device = PerDevice(devices)
        self.trainer = Trainer(net, lr, per_device=self.per_device)

    def _step(self, X: Tensor, y: Tensor, global_batch_size: int, all_reduce_: AllReduce | None) -> Tensor:
        check_labels(X, y)
        X_shards = split_and_load(X, self.per_device.devices, even_split=False)
        y_shards = split_and_load(y, self.per_device.devices, even_split=False)
        # Empty shards are left out, because not every module accepts them. They come last. Of an empty minibatch the
        # first device gets its empty shard, so that there is a loss.
        busy = max(1, sum(nest.samples(shard) > 0 for shard in X_shards))
        losses = self.per_device.map(summed_loss, self.nets[:busy], X_shards[:busy], y_shards[:busy])
        self.per_device.map(torch.autograd.backward, losses)
        self.trainer.all_reduce_ = all_reduce_
        self.trainer.step(global_batch_size, ignore_stale_grad=True)
        return gather([loss.detach() for loss in losses], self.per_device.devices[0]).sum() / global_batch_size
