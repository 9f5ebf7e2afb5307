"""Trainers as a stranger would write them: right ones, wrong ones, and ones that break."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from reference.trainers.ddp import DDPTrainer
from reference.trainers.scratch import Scratch
from reference.trainers.single import Single


class Same(DDPTrainer):
    """torch's DDP, unchanged."""


class SlowAtTwo(DDPTrainer):
    """Right, and a fifth slower where there are two devices."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        start = time.perf_counter()
        loss = super().step(X, y, global_batch_size)
        if dist.get_world_size() == 2:
            end = time.perf_counter() + 0.2 * (time.perf_counter() - start)
            while time.perf_counter() < end:
                pass
        return loss


class Sleeps(Scratch):
    """Right, and slower by much more than any noise."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        time.sleep(0.01)
        return super().step(X, y, global_batch_size)


class MeanOfMeans(DDPTrainer):
    """Wrong on uneven shards: averages the ranks' means."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return super().step(X, y, max(1, len(y)) * dist.get_world_size())


class NoExchange(DDPTrainer):
    """Wrong: every rank trains on its own."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        with self.net.no_sync():
            return super().step(X, y, global_batch_size)


class Adam:
    """Right, under oracle "self": another optimiser and a loss of its own."""

    processes = "per-device"
    oracle = "self"
    scale = 1.0

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        self.net = nn.parallel.DistributedDataParallel(model.to(devices[0]))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, label_smoothing=0.1, reduction="none")

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(self.net(X), y).sum() / global_batch_size
        # Dividing by the world size once too often would pass unseen, because Adam divides by the gradient's own size.
        (loss * dist.get_world_size() + 0 * sum(p.sum() for p in self.net.parameters())).backward()
        self.optimizer.step()
        return loss.detach()

    @property
    def replicas(self) -> list[nn.Module]:
        return [self.net.module]


class AdamWithoutExchange(Adam):
    """Wrong under oracle "self": the gradient of one shard alone."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        with self.net.no_sync():
            return super().step(X, y, global_batch_size)


class Raises(Single):
    """Breaks in its third step."""

    steps = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("the third step is too much")
        return super().step(X, y, global_batch_size)


class KillsRankOne(DDPTrainer):
    """One rank is killed from outside, as the kernel's out-of-memory killer would."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(X, y, global_batch_size)


class Hangs(DDPTrainer):
    """One rank never joins the exchange."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            time.sleep(3600)
        return super().step(X, y, global_batch_size)


class Diverges(Single):
    """Its loss is not a number."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return super().step(X, y, global_batch_size) * float("nan")


class NoProcesses:
    """Lacks `processes`."""

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None: ...

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None: ...

    replicas: list[nn.Module] = []  # noqa: RUF012


class NoStep:
    """Lacks `step`, and its `processes` is not one that exists."""

    processes = "many"

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None: ...


class WrongInit:
    """Takes no learning rate."""

    processes = "one"

    def __init__(self, model: nn.Module, devices: list[torch.device]) -> None: ...

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None: ...


class NoReplicas:
    """Keeps no replicas, which only an instance shows."""

    processes = "one"

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None: ...

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None: ...


class EmptyReplicas(NoReplicas):
    """Has the property, and nothing in it."""

    replicas: list[nn.Module] = []  # noqa: RUF012


not_a_class: Any = len
