"""Trainers and nets with one known cause for not scaling each; `docs.evidence.causes` has the gate name it.

Annotations are not postponed here, because torch looks at those of a communication hook.

`PLANTED_DELAYS_S` is JSON and says how many seconds each cause holds up a step. Without it they are a tenth, longer
than the step of LeNet on 256 samples, about 60 ms on a core, and than what a busy machine adds.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from reference.trainers.ddp import DDPTrainer
from reference.trainers.scratch import Scratch
from suite.rank.planting import slowed

VARIABLE = "PLANTED_DELAYS_S"
STORED_S = 0.06  # with four loader processes a minibatch every 15 ms, where LeNet takes 5 ms for 32 samples
DELAYS_S = {"exchange": 0.1, "imbalance": 0.1, "overhead": 0.1} | json.loads(os.environ.get(VARIABLE, "{}"))


class DelayedExchange(DDPTrainer):
    """DDP over a network on which every bucket of gradients is held up."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        if dist.get_world_size() > 1:
            self.net.register_comm_hook(None, _delayed)


def _delayed(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    time.sleep(DELAYS_S["exchange"])
    gradients = bucket.buffer().div_(dist.get_world_size())
    work: Any = dist.all_reduce(gradients, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]


class SlowRank(DDPTrainer):
    """DDP on devices of which the last one is slower, whatever it does."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """As DDP's, and late."""
        if dist.get_world_size() > 1 and dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(DELAYS_S["imbalance"])
        return super().step(X, y, global_batch_size)


class DelayedExchangeOfASlowRank(SlowRank, DelayedExchange):
    """Two causes at once."""


class Exposed(DDPTrainer):
    """DDP whose backward pass waits for the exchange of every bucket, `share` longer than that takes."""

    share = 0.0

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        if dist.get_world_size() > 1:
            self.net.register_comm_hook(self.share, _exposed)


class SlowExchange(Exposed):
    """The same with an exchange that is a tenth longer."""

    share = 0.1


def _exposed(share: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    start_ns = time.perf_counter_ns()
    gradients = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(gradients)
    now_ns = time.perf_counter_ns()
    _spin(time.perf_counter_ns, now_ns + round(float(share) * (now_ns - start_ns)))  # type: ignore[arg-type]
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


def _spin(clock: Callable[[], int], end_ns: int) -> None:
    while clock() < end_ns:
        pass


class SlowFeed(DDPTrainer):
    """DDP next to a loader that needs a tenth more of its cores for every minibatch."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        if dist.get_world_size() > 1:  # the loader's processes are forked from this one
            _MapDatasetFetcher.fetch = _fetch_slowly  # type: ignore[method-assign]


_fetch = _MapDatasetFetcher.fetch


def _fetch_slowly(fetcher: Any, indices: Any) -> Any:
    start_ns = time.thread_time_ns()
    samples = _fetch(fetcher, indices)
    now_ns = time.thread_time_ns()
    _spin(time.thread_time_ns, now_ns + (now_ns - start_ns) // 10)
    return samples


class Stored(DDPTrainer):
    """DDP next to a loader that reads minibatches from storage, which answers late; `share` later at k > 1."""

    share = 0.0

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        wait_s = STORED_S * (1 + self.share * (dist.get_world_size() > 1))
        _MapDatasetFetcher.fetch = _fetch_late(wait_s)  # type: ignore[method-assign]


class SlowlyStored(Stored):
    """The same with storage that answers a tenth later."""

    share = 0.1


def _fetch_late(wait_s: float) -> Callable[[Any, Any], Any]:
    def fetch(fetcher: Any, indices: Any) -> Any:
        time.sleep(wait_s)
        return _fetch(fetcher, indices)

    return fetch


Tail = slowed("ddp", 1.0, at=2, every=20)  # a step of twenty takes twice as long: the typical one as before


class LateDispatch(Scratch):
    """Replicas that are given their work late: overhead, by a delay that no busy machine hides."""

    def _step(self, *arguments: Any) -> Tensor:
        if len(self.replicas) > 1:
            time.sleep(DELAYS_S["overhead"])
        return super()._step(*arguments)


class Serial(Scratch):
    """The hand-written loop over devices, one shard after the other."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.per_device.map = _one_by_one  # type: ignore[method-assign, assignment]


def _one_by_one(function: Any, *arguments: Sequence[Any]) -> list[Any]:
    return [function(*each) for each in zip(*arguments, strict=True)]


def narrow() -> nn.Module:
    """Many layers with little to do each, and hardly a parameter: a step takes as long on half of a batch."""
    return nn.Sequential(
        nn.AvgPool2d(7), nn.Flatten(), nn.Linear(16, 16), *(nn.Tanh() for _ in range(2000)), nn.Linear(16, 10)
    )


def wide() -> nn.Module:
    """So many parameters that, at a small batch, half of a step on two cores is the exchange of their gradients."""
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.Linear(1024, 10))


def linear() -> nn.Module:
    """So little to compute that it waits for the loader, whose worker processes have the same cores at any k."""
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))


def images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Random images in Fashion-MNIST's shape: 1024 to train on, 64 to test."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(1088, 1, 28, 28, generator=generator)
    y = torch.randint(0, 10, (1088,), generator=generator)
    return (X[:1024], y[:1024]), (X[1024:], y[1024:])
