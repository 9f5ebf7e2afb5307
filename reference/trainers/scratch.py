"""The book's data parallelism by hand: split, local gradients, all-reduce, update (d2l, "Training on multiple GPUs").

Every replica uses its own shard's batch statistics and its own dropout masks, and keeps its own buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from reference import nest
from reference.all_reduce import ALL_REDUCE, AllReduce
from reference.loss import summed_loss
from reference.nest import Nest
from reference.per_device import PerDevice
from reference.scatter import gather, split_batch
from reference.sgd import sgd_


def train_batch(
    X: Nest,
    y: Nest,
    nets: Sequence[Callable[[Any], Tensor]],
    device_params: Sequence[Sequence[Tensor]],
    per_device: PerDevice,
    lr: float,
    *,
    batch_size: int | None = None,
    all_reduce_: AllReduce | None = ALL_REDUCE["naive"],
) -> Tensor:
    """Train one minibatch on several devices.

    Args:
        X: samples (n, ...), or a nest of tensors where the nets take one.
        y: labels (n,), int64.
        nets: one function per device from samples to scores: a module, or `lenet` with its parameters bound.
        device_params: the leaf tensors of each net, in the same order on every device.
        per_device: the devices, one per net.
        lr: learning rate.
        batch_size: what the summed gradient is divided by; n by default.
        all_reduce_: sums the gradients in place; with None each device keeps its own.

    Returns:
        The losses summed over the batch, (), detached, on the first device.
    """
    X_shards, y_shards = split_batch(X, y, per_device.devices)
    losses = per_device.map(summed_loss, nets[: len(X_shards)], X_shards, y_shards)
    per_device.map(torch.autograd.backward, losses)
    if all_reduce_ is not None:
        for copies in zip(*device_params, strict=True):
            all_reduce_(_gradients(copies))
    per_device.map(
        partial(sgd_, lr=lr, batch_size=nest.samples(X) if batch_size is None else batch_size), device_params
    )
    return gather([loss.detach() for loss in losses], per_device.devices[0]).sum()


class Scratch:
    """Apply `train_batch` to copies of any module, one on each device."""

    processes: ClassVar[Literal["one", "per-device"]] = "one"
    all_reduce: ClassVar[str] = "naive"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        self.nets = [copy.deepcopy(model).to(device) for device in devices]
        self.device_params = [list(net.parameters()) for net in self.nets]
        self.per_device = PerDevice(devices)
        self.lr = lr

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update every replica with the gradient of the whole batch; see `Trainer.step`."""
        return self._step(X, y, global_batch_size, ALL_REDUCE[self.all_reduce])

    def step_unsynced(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update every replica with its own shard's gradient only, after which the replicas differ."""
        return self._step(X, y, global_batch_size, None)

    @property
    def replicas(self) -> list[nn.Module]:
        """One module per device."""
        return self.nets

    def close(self) -> None:
        """End the threads of the replicas."""
        self.per_device.close()

    def _step(self, X: Tensor, y: Tensor, global_batch_size: int, all_reduce_: AllReduce | None) -> Tensor:
        loss = train_batch(
            X,
            y,
            self.nets,
            self.device_params,
            self.per_device,
            self.lr,
            batch_size=global_batch_size,
            all_reduce_=all_reduce_,
        )
        return loss / global_batch_size


class ScratchSharded(Scratch):
    """`Scratch` with the solution of the book's exercise: different parameters are summed on different devices."""

    all_reduce = "sharded"


def _gradients(copies: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of one parameter on all devices; an empty list if no device has one.

    A device without a gradient (idle, or its shard does not use the parameter) gets zeros, so that it receives the sum
    like the others.
    """
    if all(param.grad is None for param in copies):
        return []
    for param in copies:
        if param.grad is None:
            param.grad = torch.zeros_like(param)
    return [param.grad for param in copies if param.grad is not None]
