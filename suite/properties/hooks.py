"""Hooks that are in place while a trainer steps: on torch's optimisers, and on what draws numbers (worker's side).

Gradients are read where torch's optimisers take them, and every rank can compare them: whole, in float64, on the CPU.

A step may draw for its samples: noise, masks, the times of a diffusion. Every rank draws from generators of its own, so
what k devices compute is rightly not what one computes. Under `DrawsOfOneDevice` they can be compared: all ranks have
their generators in one state, make each draw for the whole minibatch, and keep the rows of their own samples. Not
covered, and so different from one device: draws for a part of a rank's samples, as in micro-batches; permutations of
them; and what other threads than the one that calls `step` draw.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

CPU = torch.device("cpu")
BITS = 64  # values of a mask from which on two equal masks are no coincidence
MOST_NUMBERS = 1 << 20  # 8 MiB on the device where the parameters are
K = TypeVar("K", bound=Hashable)


def whole(parameters: Sequence[Tensor], most_numbers: int = MOST_NUMBERS) -> list[Tensor]:
    """Return a float64 CPU copy of each parameter's full value; every rank must call it, because shards are gathered.

    Parameters that are split by rows over the same ranks share an all_gather: a generated net has a dozen small ones,
    and gloo needs milliseconds for each gather.

    Args:
        parameters: of any device.
        most_numbers: that are gathered at once, unless one parameter has more.
    """
    gathered: dict[int, Tensor] = {}
    for batch in _batches([one for one in parameters if _split_by_rows(one)], most_numbers):
        gathered |= zip(map(id, batch), _gathered(batch), strict=True)
    return [gathered[id(one)] if id(one) in gathered else _alone(one) for one in parameters]


def _alone(parameter: Tensor) -> Tensor:
    full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return full.detach().to("cpu", torch.float64, copy=True)


def _split_by_rows(parameter: Tensor) -> bool:
    """Return whether a parameter is a DTensor whose first dimension is split over a mesh of one dimension."""
    placements: Sequence[Any] = getattr(parameter, "placements", ())
    return len(placements) == 1 and bool(placements[0].is_shard(0))


def _batches(parameters: Sequence[Any], most_numbers: int) -> Iterator[list[Any]]:
    """Yield parameters that are gathered at once, in their order."""
    batch: list[Any] = []
    numbers = 0
    for parameter in parameters:
        too_many = numbers + parameter.numel() > most_numbers
        if batch and (too_many or parameter.device_mesh != batch[0].device_mesh):
            yield batch
            batch, numbers = [], 0
        batch.append(parameter)
        numbers += parameter.numel()
    if batch:
        yield batch


def _gathered(batch: Sequence[Any]) -> list[Tensor]:
    """Return the full values of parameters of one mesh, by one all_gather of every rank's rows of all of them."""
    mesh = batch[0].device_mesh
    shards = [_padded_shard(parameter, mesh.size()) for parameter in batch]
    mine = torch.cat(shards)
    all_ranks = mine.new_empty(mesh.size() * len(mine))
    dist.all_gather_into_tensor(all_ranks, mine, group=mesh.get_group())
    by_rank = torch.split(all_ranks.reshape(mesh.size(), -1).cpu(), [len(shard) for shard in shards], dim=1)
    return [
        rows.reshape(-1)[: parameter.numel()].reshape(parameter.shape)
        for parameter, rows in zip(batch, by_rank, strict=True)
    ]


def _padded_shard(parameter: Any, ranks: int) -> Tensor:
    """Return a rank's rows, float64 and flat, with zeros at the end up to the length of the longest shard."""
    rows, length = -(-parameter.shape[0] // ranks), math.prod(parameter.shape[1:])
    mine = parameter.detach().to_local().to(torch.float64).flatten()
    return nn.functional.pad(mine, (0, rows * length - len(mine)))


class Given(dict[K, Tensor], Generic[K]):
    """The gradients, float64, that optimisers were given for the watched parameters, by their keys.

    Attributes:
        left_out: whether one of those that were to be left out has stepped.
        others: of each optimizer, by its id, its class's name and what it was given for tensors that are not watched,
            such as its own copies of the weights: float64, in the order of its parameters; None where there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_out = False
        self.others: dict[int, tuple[str, list[Tensor | None]]] = {}

    def read(self, optimizer: Optimizer, watched: Mapping[K, Tensor]) -> None:
        """Note what an optimizer is about to use; every rank must call it, because shards are gathered."""
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        ids = set(map(id, held))
        given = {key: one.grad for key, one in watched.items() if id(one) in ids and one.grad is not None}
        self.update(zip(given, whole(list(given.values())), strict=True))
        known = set(map(id, watched.values()))
        if others := [one.grad for one in held if id(one) not in known]:
            values = iter(whole([gradient for gradient in others if gradient is not None]))
            gradients = [None if gradient is None else next(values) for gradient in others]
            self.others[id(optimizer)] = type(optimizer).__name__, gradients


@contextmanager
def gradients_at_optimizers(
    watched: Mapping[K, Tensor], *, leave_out: type[Optimizer] | tuple[type[Optimizer], ...] = ()
) -> Iterator[Given[K]]:
    """Collect the gradients that torch's optimisers are about to use.

    They are read when an optimizer's own hooks and its closure have run, which may change them. What a `step` does
    before it calls another optimizer's, such as an exchange, cannot be seen: of such an optimizer nothing is collected.

    Args:
        watched: the parameters of a replica.
        leave_out: optimisers of which nothing is collected.
    """
    gradients: Given[K] = Given()
    of_each: dict[int, RemovableHandle] = {}

    def last(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        itself, *others = args
        closure = kwargs.get("closure", others[0] if others else None)
        if closure is None:
            gradients.read(optimizer, watched)
            return args, kwargs

        def and_read() -> Any:
            loss = closure()
            gradients.read(optimizer, watched)
            return loss

        return ((itself, and_read, *others[1:]), kwargs) if others else (args, {**kwargs, "closure": and_read})

    def begin(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if isinstance(optimizer, leave_out):
            gradients.left_out = True
            return
        # One of them is `Optimizer`'s own; torch wraps a method, and a class that inherits it gets the wrapper, too.
        steps = {inspect.unwrap(vars(each)["step"]) for each in type(optimizer).__mro__ if "step" in vars(each)}
        if id(optimizer) not in of_each and len(steps) <= 2:
            of_each[id(optimizer)] = optimizer.register_step_pre_hook(last)  # called after those that it has

    hook = register_optimizer_step_pre_hook(begin)
    try:
        yield gradients
    finally:
        for handle in (hook, *of_each.values()):
            handle.remove()


@contextmanager
def optimizers_seen(trained: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Collect what torch's optimizers did in a step.

    Yields:
        - "calls": how often one stepped;
        - "held": the trained parameters that they hold;
        - "rate": the largest learning rate of a group that holds any, 0 without one.
    """
    seen: dict[str, Any] = {"calls": 0, "held": [], "rate": 0.0}
    names = {id(parameter): name for name, parameter in trained.items()}

    def note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        seen["calls"] += 1
        for group in optimizer.param_groups:
            if held := [names[id(one)] for one in group["params"] if id(one) in names]:
                seen["held"] = list(dict.fromkeys([*seen["held"], *held]))
                seen["rate"] = max(seen["rate"], abs(float(group.get("lr", 1.0))))

    hook = register_optimizer_step_post_hook(note)
    try:
        yield seen
    finally:
        hook.remove()


class DrawsOfOneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws for the whole minibatch where a step draws for its samples; from torch's default generator in any case.

    A random tensor is one for the samples if the length of its first axis is a multiple of their number, and not that
    of the whole minibatch. All are drawn on the CPU, so that all kinds of devices draw alike.

    Args:
        n: samples in the whole minibatch.
        mine: those of this process, a range of them.

    Attributes:
        drew: whether anything was drawn.
    """

    def __init__(self, n: int, mine: slice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n, self.mine, self.rows = n, mine, mine.stop - mine.start
        self.drew = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operator; if it draws for the samples, draw for all and return the part that is theirs."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        self.drew = True
        names = [argument.name for argument in func._schema.arguments]
        told = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        if "generator" in told:
            told["generator"] = None
        like = next((told[name] for name in ("self", "input") if type(told.get(name)) is Tensor), None)
        if "out" in told or (like is None and not told.get("size")):
            return func(**told)
        if like is None:
            device, length = torch.device(told.get("device") or CPU), told["size"][0]
        else:
            device, length = like.device, len(like) if like.ndim else 0
        share = length // self.rows if self.rows and length != self.n and length % self.rows == 0 else 0
        drawn = func(**{name: self._for_all(name, value, share) for name, value in told.items()})
        if func._schema.is_mutable and like is not None:
            return like.copy_(self._own(drawn, share))
        if isinstance(drawn, tuple):
            return tuple(self._own(one, share).to(device) for one in drawn)
        return self._own(drawn, share).to(device)

    def _for_all(self, name: str, value: Any, share: int) -> Any:
        """Return an argument for the whole minibatch; the rows of other processes' samples have any valid values."""
        if name == "device":
            return CPU
        if name == "size" and share:
            return [share * self.n, *value[1:]]
        if type(value) is not Tensor:
            return value
        if not share or not value.ndim or len(value) != share * self.rows:
            return value.to(CPU, copy=True)
        whole = value[:1].to(CPU).repeat(share * self.n, *[1] * (value.ndim - 1))
        self._own(whole, share).copy_(value)
        return whole

    def _own(self, drawn: Tensor, share: int) -> Tensor:
        """Return the rows of this process's samples, `share` for each; everything where the draw is not for samples."""
        return drawn[share * self.mine.start : share * self.mine.stop] if share else drawn


class Noise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps a digest of every random tensor with one row for each sample; equal digests are equal noise.

    Not seen: what NumPy and Python draw, whole numbers, masks of few bits, noise drawn for one sample or with another
    first axis than the samples, what other threads than the one that called `step` draw in the forward, and noise of
    cases whose steps have as many samples on a rank.

    Args:
        samples: in this process's part of the minibatch. Fewer than two are not told from a number for all of them.
        sizes: of axes of parameters. A random tensor with as many rows need not be noise for samples: PowerSGD draws
            one for each parameter, rightly the same on all ranks.
    """

    def __init__(self, samples: int, sizes: Collection[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.samples = 0 if samples < 2 or samples in sizes else samples
        self.digests: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operator; note what it returns if it draws random numbers."""
        returned = func(*args, **(kwargs or {}))
        if self.samples and torch.Tag.nondeterministic_seeded in func.tags:
            drawn = returned[0] if isinstance(returned, tuple) else returned
            if type(drawn) is Tensor and self._is_noise(drawn):
                values = drawn.detach().cpu().to(torch.float64).contiguous().numpy().tobytes()
                self.digests.append(hashlib.sha256(values).hexdigest())
        return returned

    def _is_noise(self, drawn: Tensor) -> bool:
        if not drawn.is_floating_point() or drawn.ndim == 0 or len(drawn) != self.samples:
            return False
        return drawn.numel() >= BITS or len(set(drawn.flatten().tolist())) > 2
