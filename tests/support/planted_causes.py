"""Trainers, nets and data with a known cause each, of lost time, of more counts, or of accuracy that is lost.

`docs.evidence.causes` checks that the first are named. `docs.evidence.counters` counts trainers with right gradients
whose steps do more than they have to, beside right ones; all of these need a process for each device. Of a second run
of the book's concise chapter there is a network, and a trainer that redraws weights.

Annotations are not postponed here, because torch looks at those of a communication hook.

`PLANTED_DELAYS_S` is JSON: by how many seconds each cause delays a step. The default is 0.1, longer than LeNet's step
on 256 samples, about 60 ms on a core, and than what a busy machine adds.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional as F
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from reference.models.resnet import Residual
from reference.trainers.data_parallel import DataParallelTrainer
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


class Accumulates(DDPTrainer):
    """Right: four micro-batches, of which only the last one exchanges."""

    exchanged = 1

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
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
        loss = super().step(X, y, global_batch_size)
        self.losses.append(loss.item())
        return loss


class ByHand(DDPTrainer):
    """Right, without buckets: every parameter's gradient is summed over the ranks by a call of its own."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        self.optimizer.zero_grad()
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        loss.backward()
        for parameter in self.exchanged():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        return loss.detach()

    def exchanged(self) -> list[nn.Parameter]:
        return list(self.net.module.parameters())


class ExchangesOneTwice(ByHand):
    """Exchanges the last parameter twice, and divides its gradient by k, so that it stays right."""

    def exchanged(self) -> list[nn.Parameter]:
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
        loss = super().step(X, y, global_batch_size)
        self.steps += 1
        return loss if self.steps % 2 else torch.tensor(loss.item())


class LogsOnRankZero(DDPTrainer):
    """Reads its loss on rank 0 alone, as many loops do; the ranks' counts differ, and are the same in every step."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = super().step(X, y, global_batch_size)
        if dist.get_rank() == 0:
            loss.item()
        return loss


# The chapter draws the weights of every linear layer and convolution from N(0, 0.01) before each run. In its first run
# its residual blocks are still lazy and escape; in the second, on two devices, nothing does (docs/log.md). The network
# is an eighth as wide and sees digits of a quarter of the side, so that a core trains it in seconds.
WIDTHS = (8, 16, 32, 64)  # the chapter's are 64, 128, 256, 512, two blocks each, at four times the pixels
STD = 0.01


def resnet() -> nn.Sequential:
    """Return the chapter's network, an eighth as wide, with torch's default start; images (n, 1, 14, 14)."""
    blocks: list[nn.Module] = []
    channels = WIDTHS[0]
    for width in WIDTHS:
        blocks += [Residual(channels, width, downsample=channels != width), Residual(width, width)]
        channels = width
    stem = (nn.Conv2d(1, WIDTHS[0], 3, padding=1), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def normal_weights_(layers: Iterable[nn.Module]) -> None:
    """Draw the weights of the linear layers and convolutions among these anew; biases stay."""
    for layer in layers:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.normal_(layer.weight, std=STD)


def first_run() -> nn.Sequential:
    """The chapter's network as its first run starts it: normal on stem and head alone."""
    net = resnet()
    normal_weights_((net[0], net[-1]))
    return nn.Sequential(nn.AvgPool2d(4), net)


class RedrawsWeights(DataParallelTrainer):
    """Redraws all weights where there are several devices, as the chapter does before its second run."""

    def __init__(self, model: nn.Sequential, devices: Sequence[torch.device], *, lr: float) -> None:
        if len(devices) > 1:
            normal_weights_(model.modules())
        super().__init__(model, devices, lr=lr)
