"""What the ranks of a trainer did in a case, and what one device would have done."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from reference import nest
from reference.nest import Nest
from suite.properties import nets, tolerance
from suite.properties.case import Case
from suite.properties.contract import apply_loss
from suite.properties.hooks import DrawsOfOneDevice
from suite.properties.nets import TextNet
from suite.properties.observe import Loss, Observation
from suite.room import accelerator

FUNCTIONS = (torch.ops.aten._log_softmax.default, torch.ops.aten.logsumexp.default)
NARROW = (torch.bfloat16, torch.float16)
Parameters = list[Tensor]
ALL = slice(None)


class RoundsOnce(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes logarithms of softmaxes in low precision as GPUs do: in float32, rounded once.

    On CPUs torch rounds the logarithm of the sum before it subtracts it. Where a sample is nearly right, p - y is
    smaller than that error, and in every variant of the case it is the same.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell torch not to load its compiler, which takes seconds; nothing here is compiled."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operator."""
        if func not in FUNCTIONS or args[0].dtype not in NARROW:
            return func(*args, **(kwargs or {}))
        rounded: Tensor = func(args[0].float(), *args[1:], **(kwargs or {})).to(args[0].dtype)
        return rounded


@dataclass(frozen=True)
class Seen:
    """What all processes of a trainer did in one case.

    Attributes:
        case: what they were given.
        ranks: the record of `suite.properties.observe.observe` of each process: one, or one a device.
        alone: the record of the trainer on one device; for oracle "self".
        variants: how many variants of the case one device computes; for low precision.
        disturbed: the records of the trainer on one device for each variant; for oracle "self".
        moved: the records of the trainer on one device from starts and minibatches that differ by rounding.
        parts: the records of the trainer on one device on each rank's samples alone, in the step `parted`.
        oracle: "sgd" or "self".
        loss: the trainer's own, None for cross-entropy.
    """

    case: Case
    ranks: list[Observation]
    alone: Observation | None = None
    oracle: str = "sgd"
    loss: Loss | None = None
    variants: int = 0
    disturbed: Sequence[Observation] = ()
    moved: Sequence[Observation] = ()
    parts: Sequence[Observation] = ()

    @property
    def steps(self) -> range:
        """The steps of the case."""
        return range(len(self.case.batches))

    @cached_property
    def names(self) -> list[str]:
        """The names of the parameters, in order."""
        return list(self._shapes)

    @cached_property
    def sizes(self) -> list[int]:
        """The number of values of each parameter, in order."""
        return [shape.numel() for shape in self._shapes.values()]

    @cached_property
    def first_skipped(self) -> int | None:
        """The first step that torch's GradScaler skipped on a rank or on one device; None where it skipped none."""
        alone = [] if self.alone is None else [self.alone]
        skips = [observed["skipped"] for observed in (*self.ranks, *alone, *self.disturbed)]
        return next((step for step in self.steps if any(skipped[step] for skipped in skips)), None)

    @property
    def drew(self) -> bool:
        """Whether a step drew random numbers; on a GPU known where the case `shares_draws`."""
        return any(observed["drew"] for observed in (*self.ranks, self.alone or {"drew": False}))

    @property
    def has_reference(self) -> bool:
        """Whether the trainer's `reference_step` trained on one device."""
        return self.alone is not None and self.alone["plain"]

    @property
    def half_the_digits(self) -> float:
        """`suite.properties.tolerance.half_the_digits` of the case's dtype."""
        return tolerance.half_the_digits(getattr(torch, self.case.dtype))

    def parameters(self, step: int, rank: int | None = 0) -> Parameters:
        """Return a rank's float64 parameters before a step; those of the trainer on one device for rank None.

        The step may be the number of steps, which is after the last one.
        """
        values = self._of(rank)["parameters"][step]
        return [value.reshape(shape) for shape, value in zip(self._shapes.values(), values, strict=True)]

    def given(self, step: int, rank: int | None = 0) -> list[Tensor | None]:
        """Return what a rank's optimisers were given in a step; None for a parameter of which that is not known."""
        given: list[Tensor | None] = self._of(rank)["gradients"][step]
        return given

    def gradient(self, step: int, rank: int = 0) -> Parameters:
        """Return the gradient that a rank used in a step, read back from its parameters."""
        return [
            (before - after) / self.case.lr
            for before, after in zip(self.parameters(step, rank), self.parameters(step + 1, rank), strict=True)
        ]

    def net(self, step: int) -> nets.CaseNet | TextNet:
        """Return the case's network with the parameters of rank 0 before a step."""
        net = nets.build(self.case)
        with torch.no_grad():
            for parameter, value in zip(net.parameters(), self.parameters(step), strict=True):
                parameter.copy_(value)
        return net

    def loss_of(self, output: Tensor, y: Nest, samples: slice | None = None, n: int | None = None) -> Tensor:
        """Return the trainer's loss (), averaged over samples, or for texts as it is.

        The output and y are of these samples of a minibatch of n; of all by default.
        """
        if self.loss is None:
            return F.cross_entropy(output, y)
        if not self.case.shares_draws:
            return apply_loss(self.loss, output, y).mean()
        accelerator.seed([], self.case.seed)
        with DrawsOfOneDevice(n or len(output), samples or slice(0, len(output))):
            return apply_loss(self.loss, output, y).mean()

    def slope(self, step: int) -> float | None:
        """Return the largest derivative of the loss of a sample by an output of a step, at least 1.

        It is None for cross-entropy, of which more is known (`suite.properties.tolerance`).
        """
        if self.loss is None:
            return None
        X, y = nets.minibatch(self.case, step)
        output = self.net(step)(X).detach().requires_grad_()
        [slopes] = torch.autograd.grad(self.loss_of(output, y), output)
        return max(1.0, len(output) * float(slopes.abs().max()))

    def right_gradient(self, step: int, samples: slice = ALL) -> Parameters:
        """Return the float64 gradient of the mean loss over some samples of a step's minibatch, on one device."""
        net, n = self.net(step), self.case.batches[step]
        mine = slice(*samples.indices(n))
        X, y = nest.take(nets.minibatch(self.case, step), mine)
        return derivative(net, self.loss_of(net(X), y, mine, n))

    def disturbed_gradient(self, step: int, variant: int) -> Parameters:
        """Return the gradient of a variant's step on one device, whose weights are moved by as much as its features.

        The minibatch goes through the net in two parts of sizes drawn at random, whose gradients are added up in the
        case's dtype. Every second variant `RoundsOnce`.
        """
        net, varied = self.net(step), replace(self.case, variant=variant)
        nets.move_(net, varied, step)
        X, y = nets.minibatch(varied, step)
        n = self.case.batches[step]
        cut = random.Random(f"{self.case.seed} {step} {variant}").randrange(n)
        parts = (slice(cut), slice(cut, n)) if cut else (ALL,)
        with RoundsOnce() if variant % 2 else nullcontext():
            scores = torch.cat([net(nest.take(X, part)) for part in parts])
            return derivative(net, self.loss_of(scores, y))

    def _of(self, rank: int | None) -> Observation:
        """Return a rank's record; that of the trainer on one device for None."""
        observation = self.alone if rank is None else self.ranks[rank]
        assert observation is not None
        return observation

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        return {name: parameter.shape for name, parameter in nets.build(self.case).named_parameters()}


def derivative(net: nn.Module, value: Tensor) -> Parameters:
    """Return the float64 derivatives of a value by a net's parameters; zeros for frozen and unused ones."""
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(value, trained, retain_graph=True, allow_unused=True, materialize_grads=True)
    by_id = {id(parameter): gradient.to(torch.float64) for parameter, gradient in zip(trained, gradients, strict=True)}
    return [by_id.get(id(p), torch.zeros_like(p, dtype=torch.float64)) for p in net.parameters()]


def has_moved(observed: Observation) -> bool:
    """Return whether a step changed a parameter."""
    return not all(equal(before, after) for before, after in pairwise(observed["parameters"]))


def equal(a: Parameters, b: Parameters) -> bool:
    """Return whether parameters are equal to the bit, but that 0 equals -0; none equals NaN."""
    return all(map(torch.equal, a, b))


def flat(tensors: Parameters) -> Tensor:
    """Return one float64 vector of all entries."""
    return torch.cat([tensor.detach().to(torch.float64).flatten() for tensor in tensors])
