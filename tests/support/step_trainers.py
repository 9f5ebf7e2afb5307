"""Right trainers whose step has all its parts; `OwnOverflow` and the mutants of `tests.mutants` replace one part each.

Not covered: a process for all devices, and parameters that are kept in shards between steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from reference.scatter import shard_bounds
from tests.right.by_hand import ByHand
from tests.right.optimizers import orthogonal


class WholeStep(ByHand):
    """SGD with momentum, in micro-batches, with a loss scale, a skip, clipping by the global norm, and a schedule.

    A step whose gradient is not a number is skipped on all ranks, and halves the scale. It is decided on the exchanged
    gradient, so all ranks decide alike.
    """

    saves = (*ByHand.saves, "schedule", "scale")
    micro_batches = 3
    momentum, decay, max_norm = 0.9, 0.8, 0.2
    scale = 2.0**10  # a power of two, so that scaling rounds nothing

    def made(self, lr: float) -> torch.optim.Optimizer:
        """Return the optimizer, and set its schedule."""
        optimizer = torch.optim.SGD(self.trained, lr, momentum=self.momentum)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.decay)
        return optimizer

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        for param in self.trained:
            param.grad = torch.zeros_like(param)
        loss = sum(self.losses(X, y, global_batch_size), X.new_zeros(()))
        self.unscale()
        skipped = self.skips(loss)
        if not skipped:
            self.clip()
            self.update()
            self.advance()
        self.adapt(skipped)
        return loss

    def losses(self, X: Tensor, y: Tensor, global_batch_size: int) -> Iterator[Tensor]:
        """Yield each micro-batch's share of the loss after its backward; exchange gradients at the end."""
        parts = (part.tensor_split(self.micro_batches) for part in (X, y))
        for part, labels in zip(*parts, strict=True):
            yield self.backward(part, labels, global_batch_size)
        self.exchange()

    def backward(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Add the scaled gradient of some samples, and return their share of the loss."""
        loss = self.part_of_loss(X, y, global_batch_size)
        self.scaled(loss).backward()
        return loss.detach()

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        return loss * self.scale

    def exchange(self) -> None:
        """Sum the gradients over the ranks."""
        for grad in self.grads:
            dist.all_reduce(grad)

    def unscale(self) -> None:
        """Divide the gradients by the scale."""
        for grad in self.grads:
            grad.div_(self.scale)

    def skips(self, loss: Tensor) -> bool:
        """Return whether this step must be skipped."""
        return not self.finite()

    def finite(self) -> bool:
        """Return whether all gradients are finite."""
        return all(bool(grad.isfinite().all()) for grad in self.grads)

    def clip(self) -> None:
        """Scale the gradients to a global norm of `max_norm` at most."""
        nn.utils.clip_grad_norm_(self.trained, self.max_norm)

    def advance(self) -> None:
        """Advance the schedule."""
        self.schedule.step()

    def adapt(self, skipped: bool) -> None:
        """Choose the scale of the next step."""
        if skipped:
            self.scale /= 2

    @property
    def grads(self) -> list[Tensor]:
        """The gradients of all trained parameters."""
        return [param.grad for param in self.trained if param.grad is not None]


class OwnOverflow(WholeStep):
    """Wrong where the loss scale overflows on one rank: that rank skips the step, and the others take it."""

    overflowed = False

    def exchange(self) -> None:
        """Look for infinite values, which NaN is not, in this rank's gradient alone."""
        self.overflowed = any(bool(grad.isinf().any()) for grad in self.grads)
        super().exchange()

    def skips(self, loss: Tensor) -> bool:
        """Return whether this rank's own gradient has overflowed."""
        return self.overflowed


class PlainStep(WholeStep):
    """`WholeStep` as plain SGD: no momentum, schedule or clipping, so that one device says what is right."""

    oracle: Literal["sgd", "self"] = "sgd"
    momentum, decay, max_norm = 0.0, 1.0, math.inf

    def clip(self) -> None:
        """Leave the gradients as they are."""


class ClippedByValue(WholeStep):
    """`WholeStep` that limits each value of the gradient, and not its norm."""

    max_value = 0.02

    def clip(self) -> None:
        """Bring every value of the gradients into [-max_value, max_value]."""
        nn.utils.clip_grad_value_(self.trained, self.max_value)


class WithReference(WholeStep):
    """`WholeStep` with the same update written plainly, for one device."""

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None:
        """Take the step with the whole minibatch at once, without a loss scale."""
        self.optimizer.zero_grad()
        F.cross_entropy(self.net(X), y).backward()
        nn.utils.clip_grad_norm_(self.trained, self.max_norm)
        self.optimizer.step()
        self.schedule.step()


class WithReferenceMisreporting(WithReference):
    """Wrong: reports the loss of the ranks' means, added up."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Report too large a loss on more than one rank."""
        return super().step(X, y, global_batch_size) * dist.get_world_size()


class WithALossOfReference(WithReference):
    """`WithReference` whose plain update returns its loss."""

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:  # type: ignore[override]
        """Take the step, and return the loss before it."""
        loss = F.cross_entropy(self.net(X), y).detach()
        super().reference_step(X, y, global_batch_size)
        return loss


class WithALossOfReferenceMisreporting(WithALossOfReference):
    """Wrong on one device as well: reports half of the loss."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Report too small a loss."""
        return super().step(X, y, global_batch_size) / 2


class Float16(WholeStep):
    """AdamW in float16 autocast, with torch's loss scale at its default."""

    init_scale = 2.0**16

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.optimizer = torch.optim.AdamW(self.trained, lr)  # type: ignore[assignment]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.init_scale)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Exchange the scaled gradients; the scaler then sees on every rank whether they are infinite."""
        for param in self.trained:
            param.grad = torch.zeros_like(param)
        with torch.autocast("cpu", dtype=torch.float16):
            output = self.net(X)
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        loss = F.cross_entropy(output, y, reduction="sum") / global_batch_size
        self.scaler.scale(loss).backward()
        self.exchange()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


class Float16WithoutExchange(Float16):
    """Wrong: the ranks take each other's gradients for their own."""

    def exchange(self) -> None:
        """Replace the gradients by rank 0's."""
        for grad in self.grads:
            dist.broadcast(grad, src=0)


class Float16Overflowing(Float16):
    """Starts with a scale that every step finds too large."""

    init_scale = 2.0**100


class PerSample:
    """Plain SGD of one gradient for each sample, as differential privacy needs them, by torch.vmap."""

    processes = "one"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        self.net, self.lr = model.to(devices[0]), lr

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        trained = {name: param for name, param in self.net.named_parameters() if param.requires_grad}
        each = torch.func.vmap(torch.func.grad_and_value(self.loss_of_one), in_dims=(None, 0, 0))
        grads, losses = each({name: param.detach() for name, param in trained.items()}, X, y)
        with torch.no_grad():
            for name, param in trained.items():
                param -= self.lr * grads[name].sum(0) / global_batch_size
        return losses.sum() / global_batch_size

    def loss_of_one(self, params: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        """Return the loss of one sample (2 + inputs,)."""
        return F.cross_entropy(torch.func.functional_call(self.net, params, (x[None],)), label[None])

    @property
    def replicas(self) -> list[nn.Module]:
        return [self.net]


class SilentAlone(WholeStep):
    """Reports no loss on one device."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor | None:  # type: ignore[override]
        """Return the loss on several ranks only."""
        loss = super().step(X, y, global_batch_size)
        return loss if dist.get_world_size() > 1 else None


class Hybrid(WholeStep):
    """Hybrid sharding: an even number of ranks is two replicas, an odd number is one.

    The gradient is summed over the shards' group and then over that of the replicas. Each rank clips and updates its
    own part of the parameters, and the parts are gathered within the shards' group.
    """

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        world_size, self.rank, self.lr = dist.get_world_size(), dist.get_rank(), lr
        self.shards = world_size if world_size % 2 else world_size // 2
        rows = torch.arange(world_size).reshape(-1, self.shards)
        self.shard_group = self.group(rows.tolist())
        self.replica_group = self.group(rows.T.tolist())

    def group(self, members: list[list[int]]) -> dist.ProcessGroup:
        """Make all groups, on all ranks, and return the one that this rank is in."""
        groups = {rank: group for ranks in members for group in [dist.new_group(ranks)] for rank in ranks}
        return groups[self.rank]

    def close(self) -> None:
        """Leave the groups."""
        dist.destroy_process_group(self.shard_group)
        dist.destroy_process_group(self.replica_group)

    def exchange(self) -> None:
        """Sum the gradients over both groups."""
        for grad in self.grads:
            dist.all_reduce(grad, group=self.shard_group)
            dist.all_reduce(grad, group=self.replica_group)

    def clip(self) -> None:
        """Scale this rank's part of the gradient by the norm of all parts."""
        part = self.part(self.grads)
        norm = self.norm(part)
        self.own = part * (self.max_norm / (norm + 1e-6)).clamp(max=1)

    def norm(self, part: Tensor) -> Tensor:
        """Return the norm of the whole gradient, of which this rank has a part."""
        total = part.square().sum()
        dist.all_reduce(total, group=self.shard_group)
        return total.sqrt()

    def part(self, tensors: list[Tensor]) -> Tensor:
        """Return this rank's part of all values of some tensors."""
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return flat[self.mine(len(flat))]

    def mine(self, n: int) -> slice:
        """Return which of n values are this rank's."""
        return shard_bounds(n, self.shards, self.rank % self.shards)

    def update(self) -> None:
        """Update this rank's part and gather all parts."""
        flat = torch.zeros_like(nn.utils.parameters_to_vector(self.trained))
        flat[self.mine(len(flat))] = self.part(list(self.trained)) - self.lr * self.own
        dist.all_reduce(flat, group=self.shard_group)
        with torch.no_grad():
            nn.utils.vector_to_parameters(flat, self.trained)


class Muon(WholeStep):
    """Orthogonalises the gradient of every matrix (Jordan et al. 2024, "Muon") before its momentum."""

    def update(self) -> None:
        """Take a step along orthogonalised gradients."""
        for param in self.trained:
            if param.ndim == 2 and param.grad is not None:
                param.grad = self.orthogonal(param.grad)
        super().update()

    def orthogonal(self, matrix: Tensor) -> Tensor:
        """Bring all singular values near 1."""
        return orthogonal(matrix)


class Gathering(PlainStep):
    """Every rank computes the loss of the whole minibatch from the outputs of all ranks, as contrastive losses need."""

    micro_batches = 1

    def backward(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Add the gradient of this rank's samples; return an equal share of the loss."""
        mine = shard_bounds(global_batch_size, dist.get_world_size(), dist.get_rank())
        outputs = self.gather(self.net(X), global_batch_size, mine)
        labels = self.gather(y, global_batch_size, mine)
        loss = F.cross_entropy(outputs, labels, reduction="sum") / global_batch_size
        self.scaled(loss).backward()
        return loss.detach() / dist.get_world_size()

    def gather(self, part: Tensor, n: int, mine: slice) -> Tensor:
        """Return the parts of all ranks, differentiable."""
        gathered: Tensor = Gather.apply(part, n, mine)
        return gathered


class NoisyLoss(PlainStep):
    """Adds noise to its outputs, from a generator of its own that every rank seeds apart."""

    oracle: Literal["sgd", "self"] = "self"
    saves = (*PlainStep.saves, "source")
    micro_batches = 1

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.source = self.generator()

    def generator(self) -> torch.Generator:
        """Return a generator that no other rank has."""
        return torch.Generator().manual_seed(dist.get_rank())

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        output = self.net(X)
        noise = torch.randn(output.shape, dtype=output.dtype, generator=self.source)
        return F.cross_entropy(output + noise, y, reduction="sum") / global_batch_size


class SharedFactors(NoisyLoss):
    """Scales its outputs by three random factors, on purpose the same on every rank, as a jitter of colours does."""

    def generator(self) -> torch.Generator:
        """Return a generator that all ranks have alike."""
        return torch.Generator().manual_seed(0)

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        output = self.net(X) * torch.rand(3, generator=self.source).prod()
        return F.cross_entropy(output, y, reduction="sum") / global_batch_size


class Gather(torch.autograd.Function):
    """Parts of a minibatch to the whole of it, on every rank."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, part: Tensor, n: int, mine: slice) -> Tensor:
        ctx.mine = mine  # type: ignore[attr-defined]
        whole = part.new_zeros(n, *part.shape[1:])
        whole[mine] = part
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        """Every rank has the loss of all samples, so the derivative of its own part is complete."""
        return grad[ctx.mine], None, None  # type: ignore[attr-defined]


class ExchangesInAHook(ByHand):
    """A hook of the optimizer exchanges the gradients."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        optimizer = super().made(lr)
        optimizer.register_step_pre_hook(lambda *_: self.exchange())
        return optimizer

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = self.backward(X, y, global_batch_size)
        self.update()
        return loss


class _Exchanging(torch.optim.Adam):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                dist.all_reduce(param.grad)
        return super().step(closure)


class ExchangesInASubclass(ExchangesInAHook):
    """The optimizer's own class exchanges the gradients, as in Horovod."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return _Exchanging(self.trained, lr)


class ExchangesInAClosure(ByHand):
    """The optimizer makes the gradients itself."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        losses: list[Tensor] = []

        def closure() -> float:
            losses.append(self.backward(X, y, global_batch_size))
            self.exchange()
            return 0.0

        self.call(closure)
        for param in self.trained:
            param.grad = None
        return losses[-1]

    def call(self, closure: Callable[[], float]) -> None:
        """Call the optimizer."""
        self.optimizer.step(closure)


class ExchangesInANamedClosure(ExchangesInAClosure):
    """The closure is given by its name."""

    def call(self, closure: Callable[[], float]) -> None:
        self.optimizer.step(closure=closure)


class _Twice(ByHand):
    """Wrong: summed and multiplied by the world size, which Adam divides out again but for its eps."""

    def exchange(self) -> None:
        super().exchange()
        torch._foreach_mul_([param.grad for param in self.trained], dist.get_world_size())


class ExchangesInAHookTwice(ExchangesInAHook, _Twice):
    """Wrong as `_Twice`."""


class ExchangesInAClosureTwice(ExchangesInAClosure, _Twice):
    """Wrong as `_Twice`."""
