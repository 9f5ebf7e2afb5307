"""Trainers that are spoilt on purpose (in workers): a slow step, a wrong gradient, and one without an exchange.

The drill plants the first two, which are subclasses of a right trainer, so processes, oracle, replicas and loss are
its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

from reference.per_device import synchronize
from reference.trainers.single import Single
from suite.properties.contract import load_trainer


def slowed(spec: str, share: float, at: int | None = None, every: int = 1) -> type[Any]:
    """Return a trainer class whose step takes longer by a share of its time.

    A busy wait follows each step in proportion to it, so the share holds at any batch size. The feed of a window does
    not take longer, so a window's slowdown is a little below `share`.

    Args:
        spec: a table name, module:Class or path.py:Class; a ContractError where it is no trainer.
        share: of the step's own time: 0.25 makes it a quarter longer.
        at: the only world size at which it is slowed; None for all.
        every: only each such step is slowed: with 10, the tenth, the twentieth and so on.
    """
    if not share >= 0:
        raise ValueError(f"share {share!r}: a slowdown is a share of the step's time, 0 or more")
    inner: Any = load_trainer(spec)

    class Slow(inner):  # type: ignore[misc]
        def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
            super().__init__(model, devices, lr=lr)
            self.planted_devices = devices if at in (None, _world_size(self, devices)) else None
            self.planted_steps = 0

        def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Any:
            self.planted_steps += 1
            if self.planted_devices is None or self.planted_steps % every:
                return super().step(X, y, global_batch_size)
            synchronize(self.planted_devices)
            start_ns = time.perf_counter_ns()
            loss = super().step(X, y, global_batch_size)
            synchronize(self.planted_devices)
            now_ns = time.perf_counter_ns()
            end_ns = now_ns + round(share * (now_ns - start_ns))
            while time.perf_counter_ns() < end_ns:
                pass
            return loss

    return Slow


def wrong(spec: str) -> type[Any]:
    """Return a trainer class that updates with the sum over devices of mean gradients instead of their mean.

    The steps of k devices are k times too long. Replicas are bit-equal, the loss falls, and one device is right: only a
    comparison of gradients shows the fault. `spec` is as `slowed` has it.
    """
    inner: Any = load_trainer(spec)

    class Wrong(inner):  # type: ignore[misc]
        def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
            super().__init__(model, devices, lr=lr)
            self.planted_factor = _world_size(self, devices)

        def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Any:
            before = [[p.detach().clone() for p in replica.parameters()] for replica in self.replicas]
            loss = super().step(X, y, global_batch_size)
            with torch.no_grad():
                for replica, old in zip(self.replicas, before, strict=True):
                    for parameter, was in zip(replica.parameters(), old, strict=True):
                        parameter.copy_(was + self.planted_factor * (parameter - was))
            return loss

    return Wrong


def _world_size(trainer: Any, devices: Sequence[torch.device]) -> int:
    return len(devices) if trainer.processes == "one" else dist.get_world_size()


class Independent(Single):
    """`Single` in a process for each device."""

    processes: ClassVar[Literal["one", "per-device"]] = "per-device"
