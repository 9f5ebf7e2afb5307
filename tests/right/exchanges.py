"""Right trainers that exchange something else than gradients after the backward, or exchange them elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from reference.trainers.fsdp import FSDPTrainer
from tests.right.by_hand import ByHand


class AveragesParameters(ByHand):
    """Every rank takes a step of its own, and the weights are averaged, which for plain SGD is the same.

    The question of pytorch/pytorch#59699. A rank's step is k times that of its part of the mean loss.
    """

    oracle: Literal["sgd", "self"] = "sgd"

    def made(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.trained, lr * dist.get_world_size())

    def exchange(self) -> None:
        """Leave the gradients as they are."""

    @torch.no_grad()
    def update(self) -> None:
        super().update()
        for param in self.trained:
            dist.all_reduce(param)
            param.div_(dist.get_world_size())


class OuterOptimizer(ByHand):
    """Local SGD of one step, whose averaged change an outer optimizer takes for a gradient.

    As DiLoCo (Douillard et al. 2023, arXiv:2311.08105) with one inner step.
    """

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.inner = torch.optim.SGD(self.trained, lr * dist.get_world_size())
        self.anchors = [nn.Parameter(param.detach().clone()) for param in self.trained]
        return torch.optim.SGD(self.anchors, 0.7, momentum=0.9, nesterov=True)

    def exchange(self) -> None:
        """Leave the gradients as they are."""

    @torch.no_grad()
    def update(self) -> None:
        self.inner.step()
        for anchor, param in zip(self.anchors, self.trained, strict=True):
            anchor.grad = (anchor - param) / dist.get_world_size()
            dist.all_reduce(anchor.grad)
        super().update()
        for anchor, param in zip(self.anchors, self.trained, strict=True):
            param.copy_(anchor)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for anchor, param in zip(self.anchors, self.trained, strict=True):
            anchor.copy_(param)


class InHooks(ByHand):
    """Gradients are exchanged during the backward, by hooks of the parameters, in one order on all ranks.

    All parameters are added with a factor of 0, so that every hook is called on every rank.
    """

    waits = False

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.ready: set[int] = set()
        self.begun: list[Any] = []
        self.order = list(reversed(range(len(self.trained))))
        for position, param in enumerate(self.trained):
            param.register_post_accumulate_grad_hook(lambda _, position=position: self.arrived(position))
        return super().made(lr)

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.ready, self.begun = set(), []
        nothing = torch.stack([param.sum() for param in self.trained]).sum() * 0
        return super().part_of_loss(X, y, global_batch_size) + nothing

    def arrived(self, position: int) -> None:
        """Begin all exchanges whose turn it is."""
        self.ready.add(position)
        while len(self.begun) < len(self.order) and self.order[len(self.begun)] in self.ready:
            self.begun.append(self.begin(self.trained[self.order[len(self.begun)]]))

    def begin(self, param: Tensor) -> Any:
        """Exchange a parameter's gradient."""
        return dist.all_reduce(param.grad)

    def exchange(self) -> None:
        """Nothing is left to do."""
        assert len(self.begun) == len(self.order)


class InAsynchronousHooks(InHooks):
    """The same, while the backward goes on."""

    def begin(self, param: Tensor) -> Any:
        return dist.all_reduce(param.grad, async_op=True)

    def exchange(self) -> None:
        """Wait for all of them."""
        super().exchange()
        for work in self.begun:
            work.wait()


class HooksPlainly(InAsynchronousHooks):
    """Exchange by asynchronous hooks; the plain update has none, and reports no loss."""

    hooked = True

    def arrived(self, position: int) -> None:
        if self.hooked:
            super().arrived(position)

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None:
        """Take the step with the whole minibatch at once."""
        self.hooked = False
        self.whole(F.cross_entropy(self.net(X), y))
        self.optimizer.step()
        self.hooked = True


class StepsInBackward(InHooks):
    """Every parameter has an optimizer of its own, which steps in the backward, and its gradient is dropped there."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.each = {param: torch.optim.Adam([param], lr) for param in self.trained}
        return super().made(lr)

    def begin(self, param: Tensor) -> None:
        dist.all_reduce(param.grad)
        self.each[param].step()
        param.grad = None

    def update(self) -> None:
        """Nothing is left to do."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "each": [optimizer.state_dict() for optimizer in self.each.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for optimizer, saved in zip(self.each.values(), state["each"], strict=True):
            optimizer.load_state_dict(saved)


class Wrapped(ByHand):
    """torch's DistributedDataParallel, which is told that parameters may be unused."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.ddp = DistributedDataParallel(self.net, find_unused_parameters=True)
        return self.optimizer_of(lr)

    def optimizer_of(self, lr: float) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.trained, lr)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.accumulated(X, y, global_batch_size)
        self.update()
        return loss

    def accumulated(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Make the gradients, and return this rank's part of the loss."""
        return self.pass_(X, y, global_batch_size)

    def pass_(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Go forward and backward through the wrapped net, which averages over the ranks."""
        loss = F.cross_entropy(self.ddp(X), y, reduction="sum") / global_batch_size
        (loss * dist.get_world_size()).backward()
        return loss.detach()


class AccumulatesWithoutSync(Wrapped):
    """Two micro-batches, of which the first is not exchanged."""

    oracle: Literal["sgd", "self"] = "sgd"

    def optimizer_of(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.trained, lr)

    def accumulated(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        total = X.new_zeros(())
        for number, (part, labels) in enumerate(zip(X.tensor_split(2), y.tensor_split(2), strict=True)):
            with self.ddp.no_sync() if number == 0 else contextlib.nullcontext():
                total += self.pass_(part, labels, global_batch_size)
        return total


class HookOfDDP(Wrapped):
    """A communication hook in the place of DDP's own exchange: torch's, with gradients sent in float64."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        optimizer = super().made(lr)
        self.ddp.register_comm_hook(None, _send_in_float64)
        return optimizer


def _send_in_float64(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are texts
    """Exchange a bucket in float64."""
    given = bucket.buffer()
    bucket.set_buffer(given.to(torch.float64))
    return default_hooks.allreduce_hook(None, bucket).then(lambda future: future.value().to(given.dtype))


class ZeroRedundancy(Wrapped):
    """torch's ZeroRedundancyOptimizer: each rank updates some of the parameters and sends them to the others."""

    def optimizer_of(self, lr: float) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(self.trained, torch.optim.AdamW, lr=lr)

    def state_dict(self) -> dict[str, Any]:
        own = self.optimizer.optim.state_dict()  # type: ignore[attr-defined]
        return {"net": self.net.state_dict(), "own": own, "generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.optim.load_state_dict(state["own"])  # type: ignore[attr-defined]
        torch.set_rng_state(state["generator"])


class Joins(Wrapped):
    """torch's Join: a rank without samples leaves the step early, and shadows the collectives of the others.

    The last rank to leave sends its weights to the others, so that the optimizer keeps no state of its own.
    """

    oracle: Literal["sgd", "self"] = "sgd"

    def optimizer_of(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.trained, lr)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = X.new_zeros(())
        self.optimizer.zero_grad()
        with Join([self.ddp], divide_by_initial_world_size=True):
            if len(X):
                loss = self.pass_(X, y, global_batch_size)
                self.update()
        return loss


class ShardedAdamW(FSDPTrainer):
    """torch's FSDP2 with AdamW on the slices, as the reference but for the optimizer."""

    oracle: ClassVar[Literal["sgd", "self"]] = "self"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr)  # type: ignore[assignment]
