"""Data parallelism as in Gluon: a net on many devices, `split_and_load`, and a trainer that exchanges in its step.

Every replica uses its own shard's batch statistics and its own dropout masks, and keeps its own buffers. Shards differ
by at most one sample, and a device is idle only when there are fewer samples than devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from reference import nest
from reference.gluon import Net, Trainer, split_and_load
from reference.loss import summed_loss
from reference.per_device import PerDevice
from reference.scatter import check_labels, gather


class GluonTrainer:
    """`reference.gluon` with uneven shards, by MXNet's newer rule.

    Idle devices, and devices whose shard does not use a parameter, contribute zeros to the exchange. A parameter that
    no shard uses stays as it is.

    Raises:
        ValueError: there are no devices.
        DeferredInitializationError: the model is lazy and its shapes are not known yet.
    """

    processes: ClassVar[Literal["one", "per-device"]] = "one"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        net = Net(model, devices)
        self.nets = net.replicas
        self.per_device = PerDevice(devices)
        self.synced = Trainer(net, lr, per_device=self.per_device)
        self.unsynced = Trainer(net, lr, per_device=self.per_device, all_reduce_=None)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update every replica with the gradient of the whole batch; see `Trainer.step`."""
        return self._step(X, y, global_batch_size, self.synced)

    def step_unsynced(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update every replica with its own shard's gradient only, after which the replicas differ."""
        return self._step(X, y, global_batch_size, self.unsynced)

    @property
    def replicas(self) -> list[nn.Module]:
        """One module per device."""
        return self.nets

    def close(self) -> None:
        """End the threads of the replicas."""
        self.per_device.close()

    def _step(self, X: Tensor, y: Tensor, global_batch_size: int, trainer: Trainer) -> Tensor:
        check_labels(X, y)
        X_shards = split_and_load(X, self.per_device.devices, even_split=False)
        y_shards = split_and_load(y, self.per_device.devices, even_split=False)
        # Empty shards are left out, because not every module accepts them. They come last. Of an empty minibatch the
        # first device gets its empty shard, so that there is a loss.
        busy = max(1, sum(nest.samples(shard) > 0 for shard in X_shards))
        losses = self.per_device.map(summed_loss, self.nets[:busy], X_shards[:busy], y_shards[:busy])
        self.per_device.map(torch.autograd.backward, losses)
        trainer.step(global_batch_size, ignore_stale_grad=True)
        return gather([loss.detach() for loss in losses], self.per_device.devices[0]).sum() / global_batch_size
