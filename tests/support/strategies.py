"""Shared by the tests of `reference/`: networks, minibatches to draw, and the comparison of a step with one device's.

`suite.properties.tolerance` derives how far two right steps may differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.trainers.single import Single
from suite.properties.tolerance import half_the_digits, roundoff

CPU = torch.device("cpu")
CLASSES = 4
LR = 0.5

world_sizes = st.integers(1, 8)
seeds = st.integers(0, 2**16)


def smooth_net() -> nn.Module:
    """Return a network without kinks, so that float32 rounding cannot flip a ReLU: (n, 6) to (n, 4)."""
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def conv_net() -> nn.Module:
    """Return a small convolutional network with ReLU, pooling and a grouped normalisation: (n, 1, 6, 6) to (n, 4)."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)
    )


class Gated(nn.Module):
    """Uses one layer only for samples whose first feature is positive, and another layer never."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.extra, self.never = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, 6) to scores (n, 4)."""
        chosen = X[:, :1] > 0
        output: Tensor = self.base(X)
        return output + chosen * self.extra(X) if chosen.any() else output


class TiedNet(nn.Module):
    """Uses one weight in two layers, without kinks: (n, 6) to (n, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.second.weight = self.first.weight

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, 6) to scores (n, 4)."""
        return self.last(torch.tanh(self.second(torch.tanh(self.first(X)))))


class Nested(nn.Module):
    """Takes and returns nested tensors, and counts its calls in a buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(3.0))
        self.register_parameter("bias", None)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, pair: tuple[Tensor, float], *, rows: dict[str, Tensor]) -> dict[str, Any]:
        """Scale X (n,) and pass the rows on."""
        X, factor = pair
        self.calls += 1
        return {"scaled": X * self.weight * factor, "rows": [rows["a"] + 1], "total": X.sum()}


@dataclass(frozen=True)
class Case:
    """A network with its weights, a world size, and minibatches whose sizes differ."""

    net: nn.Module
    world_size: int
    batches: list[tuple[Tensor, Tensor]]

    @property
    def devices(self) -> list[torch.device]:
        """As many virtual CPU devices as the world has."""
        return [CPU] * self.world_size


@st.composite
def cases(
    draw: st.DrawFn, make_net: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype, max_steps: int = 3
) -> Case:
    """Draw 1 to 8 devices and 1 to ``max_steps`` minibatches of 1 to 20 samples, so shards are uneven or empty."""
    sizes = draw(st.lists(st.integers(1, 20), min_size=1, max_size=max_steps))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(draw(seeds))
        net = make_net().to(dtype)
        batches = [(torch.randn(n, *shape, dtype=dtype), torch.randint(CLASSES, (n,))) for n in sizes]
    return Case(net, draw(world_sizes), batches)


def batch(n: int) -> tuple[Tensor, Tensor]:
    """Return n samples (n, 6), float64, and labels (n,)."""
    return torch.randn(n, 6, dtype=torch.float64), torch.randint(CLASSES, (n,))


def update_bound(net: nn.Module, X: Tensor, lr: float) -> list[Tensor]:
    """Return for each parameter how far two right SGD steps from ``net`` may differ, whatever the labels are."""
    net = deepcopy(net).to(memory_format=torch.contiguous_format)  # torch 2.9 differentiates no other one in a batch
    return [lr * bound for bound in gradient_bound(net, X, lr)]


def within_bound(ours: nn.Module, theirs: nn.Module, bounds: Sequence[Tensor]) -> bool:
    """Say whether two modules differ by no more than these bounds."""
    triples = zip(values(ours), values(theirs), bounds, strict=True)
    return all(bool(((p - q).abs() <= bound).all()) for p, q, bound in triples)


def check_step(trainer: Any, X: Tensor, y: Tensor) -> None:
    """Take a step with rate `LR`; compare the loss and all replicas with one device's step from the same weights."""
    net = copy.deepcopy(trainer.replicas[0])
    oracle = Single(net, [CPU], lr=LR)
    ours, theirs = trainer.step(X, y, len(X)), oracle.step(X, y, len(X))
    assert abs(ours - theirs) <= half_the_digits(X.dtype) * (1 + abs(theirs))
    bounds = update_bound(net, X, LR)
    for replica in trainer.replicas:
        assert bit_equal(replica, trainer.replicas[0])
        assert within_bound(replica, oracle.net, bounds)


def values(net: nn.Module) -> list[Tensor]:
    """Return copies of a module's parameters."""
    return [param.detach().clone() for param in net.parameters()]


def bit_equal(a: nn.Module, b: nn.Module) -> bool:
    """Say whether two modules have the same parameters to the last bit."""
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


MOST_VALUES = 10**6  # of gradients that are computed at once


def gradient_bound(model: nn.Module, X: Tensor, lr: float) -> list[Tensor]:
    """Return for each parameter how far two gradients of the mean cross-entropy may differ, read back from a step.

    The two are evaluated on one kind of device, whatever the net is made of. The functions are the same on both sides,
    and only sums have another order. A sum of n terms errs by at most (n - 1) u sum|term| in any order (Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2). A term is what one output of one sample adds
    to one entry. Each term is itself made of inner products along the net, in which terms cancel; so n is the minibatch
    size plus the longest inner product, and of the sums over a parameter's entries the largest is taken for all of
    them. The checks themselves use `suite.properties.tolerance.gradient_bound`, which knows their nets alone and lets
    nothing cancel: of a wide net its worst case is so far above what happens that an error of a millionth in LeNet
    would be within it.

    Args:
        model: with the weights before the step; the output for a sample depends on that sample only.
        X: the whole minibatch, (n, ...).
        lr: learning rate of the step.
    """
    u, parameters = roundoff(X.dtype), list(model.parameters())
    widest = max(parameter.numel() // min(parameter.shape or (1,)) for parameter in parameters)
    terms = len(X) + widest + X[:1].numel()
    sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters]
    outputs = model(X).flatten()
    at_once = max(1, MOST_VALUES // sum(parameter.numel() for parameter in parameters))
    for chosen in torch.split(torch.eye(len(outputs), dtype=outputs.dtype), at_once):
        gradients = torch.autograd.grad(
            outputs, parameters, chosen, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
        for total, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                total += gradient.abs().sum(0, dtype=torch.float64)
    largest = [float(total.max()) / len(X) for total in sums]
    read = [2 * u * parameter.detach().to(torch.float64).abs() / lr for parameter in parameters]
    # A parameter that is unused must not change at all.
    return [(2 * terms * u * most + update) * (most > 0) for most, update in zip(largest, read, strict=True)]
