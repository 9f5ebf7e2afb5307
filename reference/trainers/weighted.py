"""Devices of unequal speed, such as a GPU and a CPU: each gets a share of the minibatch in proportion to its speed.

The gradient is exact for any shares, because it is a sum over samples divided by the global batch, never a mean of the
shards' means. CPU devices work in threads, at the same time as the CUDA ones (`PerDevice`).

The gradients are summed on the first device, the update is computed there once, and the new parameters are copied to
the others. This is as much traffic as the book's all-reduce, which copies the sum back instead. Separate updates on a
CPU and a GPU could differ in the last bit, because one rounds p - a * g once (fused multiply-add) and the other twice,
and such differences grow from step to step.

Every replica uses its own shard's batch statistics and its own dropout masks, and keeps its own buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from torch import Tensor, nn

from reference import nest
from reference.loss import summed_loss
from reference.nest import Nest
from reference.per_device import synchronize
from reference.scatter import gather, split_batch, weighted_sizes
from reference.sgd import sgd_
from reference.trainers.scratch import Scratch


class Weighted(Scratch):
    """SGD on the mean cross-entropy, each minibatch split over the devices by weight.

    Weights that are not given are measured: minibatches are split evenly and timed until every device has had
    ``warmup`` shares; the weights are then each device's best samples/s. The best is used because a first call, and
    other work on the machine, can only slow a device down. The time is that of forward and backward, without the copies
    between devices, at the size of an even share: a device that is only fast on larger batches gets too low a weight.

    Args:
        model, devices, lr: as in `Trainer`; devices of any kinds. The first one sums and updates, and may have weight 0
            like any other.
        weights: one per device, as in `weighted_sizes`; None measures them.
        warmup: number of shares that are timed on each device, at least 1.

    Raises:
        ValueError: wrong weights or ``warmup``.
    """

    def __init__(
        self,
        model: nn.Module,
        devices: Sequence[torch.device],
        *,
        lr: float,
        weights: Sequence[float] | None = None,
        warmup: int = 3,
    ) -> None:
        if weights is not None:
            if len(weights) != len(devices):
                raise ValueError(
                    f"weights are {list(weights)} for {len(devices)} devices: give one per device, or None to measure"
                )
            weighted_sizes(1, weights)  # raises here what every step would raise
        if warmup < 1:
            raise ValueError(f"warmup is {warmup}: a speed needs at least 1 timed share per device")
        super().__init__(model, devices, lr=lr)
        self._weights = None if weights is None else tuple(weights)
        self._warmup = warmup
        self._speeds: list[list[float]] = [[] for _ in devices]

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update every replica with the gradient of the whole batch; see `Trainer.step`."""
        loss = self._backward(X, y)
        with torch.no_grad():
            changed = [copies for copies in zip(*self.device_params, strict=True) if _sum_on_first(copies)]
            sgd_(self.device_params[0], self.lr, global_batch_size)
            for first, *others in changed:
                for param in others:
                    param.copy_(first)
        return loss / global_batch_size

    def step_unsynced(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update every replica with its own shard's gradient only, after which the replicas differ."""
        loss = self._backward(X, y)
        for params in self.device_params:
            sgd_(params, self.lr, global_batch_size)
        return loss / global_batch_size

    @property
    def weights(self) -> tuple[float, ...]:
        """One per device: the given ones, or 1.0 each while measuring and then the measured samples/s."""
        return (1.0,) * len(self.nets) if self._weights is None else self._weights

    def _backward(self, X: Tensor, y: Tensor) -> Tensor:
        """Compute each share's gradient on its device; return the losses summed over the batch, (), detached."""
        devices = self.per_device.devices
        X_shards, y_shards = split_batch(X, y, devices, weighted_sizes(nest.samples(X), self.weights))
        timed = [self._weights is None] * len(devices)
        shares = self.per_device.map(_share, self.nets, X_shards, y_shards, devices, timed)
        if self._weights is None:
            for speeds, shard, (_, seconds) in zip(self._speeds, X_shards, shares, strict=True):
                speeds += [n / seconds] if (n := nest.samples(shard)) else []
            if all(len(speeds) >= self._warmup for speeds in self._speeds):
                self._weights = tuple(max(speeds) for speeds in self._speeds)
        return gather([loss for loss, _ in shares], devices[0]).sum()


def _share(net: nn.Module, X: Nest, y: Tensor, device: torch.device, timed: bool) -> tuple[Tensor, float]:
    """Compute one share's gradient; return its summed loss, (), detached, and the seconds, valid only if timed."""
    net.zero_grad()  # an interrupted step may have left gradients
    if nest.samples(X) == 0:
        return nest.leaves(X)[0].new_zeros(()), 0.0
    if timed:
        synchronize([device])
    start = perf_counter()
    loss = summed_loss(net, X, y)
    torch.autograd.backward(loss)
    if timed:
        synchronize([device])
    return loss.detach(), perf_counter() - start


def _sum_on_first(copies: Sequence[Tensor]) -> bool:
    """Set the first copy's gradient to the sum over all copies, clear the others'; return whether any copy had one."""
    total: Tensor | None = None
    for param in copies:
        if param.grad is not None:
            grad = param.grad.to(copies[0].device)
            total = grad if total is None else total.add_(grad)
            param.grad = None
    copies[0].grad = total
    return total is not None
