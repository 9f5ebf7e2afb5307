"""What hypothesis draws for the tests of `reference`: networks, minibatches, world sizes, and the error they may show.

**Tolerance.** A gradient is a sum of n per-sample gradients, each of which is itself sums along the network. Adding m
terms in any order, in a dtype with unit round-off u, is off by at most gamma * A, gamma = m u / (1 - m u), A the sum of
the terms' absolute values (Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2). We take A from the
per-sample gradients, its largest entry for a whole tensor because terms cancel inside a sample too, and for m the
longest sum there can be: n samples times a sample's entries, plus twice all parameters for the way forth and back. Two
computations may each be off by that, hence the factor 2. The update adds a rounding of the parameter on each side.
Real errors grow like the root of m, so nothing here is close to its limit; the mistakes looked for are of size A / n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

CPU = torch.device("cpu")
CLASSES = 4

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
    """Uses a layer only for samples whose first feature is positive, and another one never."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.extra, self.never = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, 6) to scores (n, 4)."""
        chosen = X[:, :1] > 0
        output: Tensor = self.base(X)
        return output + chosen * self.extra(X) if chosen.any() else output


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
        """So many virtual CPU devices."""
        return [CPU] * self.world_size


@st.composite
def cases(
    draw: st.DrawFn, make_net: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype, max_steps: int = 3
) -> Case:
    """Draw 1 to 8 devices and 1 to ``max_steps`` minibatches of 1 to 20 samples: uneven shards and idle devices."""
    sizes = draw(st.lists(st.integers(1, 20), min_size=1, max_size=max_steps))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(draw(seeds))
        net = make_net().to(dtype)
        batches = [(torch.randn(n, *shape, dtype=dtype), torch.randint(CLASSES, (n,))) for n in sizes]
    return Case(net, draw(world_sizes), batches)


def update_bound(net: nn.Module, X: Tensor, y: Tensor, lr: float) -> list[Tensor]:
    """Return for each parameter how far two correct SGD steps from ``net`` may lie apart; derived above."""
    params = list(net.parameters())
    sums = [torch.zeros_like(param) for param in params]
    for i in range(len(X)):
        grads = torch.autograd.grad(F.cross_entropy(net(X[i : i + 1]), y[i : i + 1]), params, allow_unused=True)
        for total, grad in zip(sums, grads, strict=True):
            if grad is not None:
                total += grad.abs()
    unit_roundoff = torch.finfo(params[0].dtype).eps / 2
    m = X.numel() + 2 * sum(param.numel() for param in params)
    gamma = m * unit_roundoff / (1 - m * unit_roundoff)
    return [
        2 * gamma * lr * total.max() / len(X) + 4 * unit_roundoff * param.detach().abs()
        for total, param in zip(sums, params, strict=True)
    ]


def values(net: nn.Module) -> list[Tensor]:
    """Return copies of a module's parameters."""
    return [param.detach().clone() for param in net.parameters()]


def bit_equal(a: nn.Module, b: nn.Module) -> bool:
    """Say whether two modules have the same parameters to the last bit."""
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
