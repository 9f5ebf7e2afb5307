"""Right trainers with unusual optimizers: updates by sign, by line searches, by whole matrices, by two passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.right.by_hand import ByHand


class SignedMomentum(torch.optim.Optimizer):
    """Lion (Chen et al. 2023, arXiv:2302.06675): the sign of an interpolated momentum, and decoupled decay."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            fast, slow = group["betas"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                momentum = self.state[param].setdefault("momentum", torch.zeros_like(param))
                param.mul_(1 - group["lr"] * group["decay"])
                param.sub_(group["lr"] * torch.sign(momentum.lerp(param.grad, 1 - fast)))
                momentum.lerp_(param.grad, 1 - slow)


class Lion(ByHand):
    """Steps are signs, so a gradient of nothing but rounding error moves a parameter by the whole rate."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return SignedMomentum(self.trained, lr)


class LionWithoutDecay(ByHand):
    """Without decay, steps of one size in both directions bring a parameter back to where it was, to the bit."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return SignedMomentum(self.trained, lr, decay=0.0)


class LBFGS(ByHand):
    """Several passes through the net in one step, by a closure; each of them exchanges gradients and loss."""

    search: str | None = None

    def made(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.trained, lr, max_iter=3, history_size=4, line_search_fn=self.search)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        parts: list[Tensor] = []

        def closure() -> Tensor:
            parts.append(self.backward(X, y, global_batch_size))
            self.exchange()
            total = parts[-1].clone()
            dist.all_reduce(total)
            return total

        self.optimizer.step(closure)  # type: ignore[arg-type]
        return parts[0]


class LBFGSWithLineSearch(LBFGS):
    """The strong Wolfe line search decides by comparing losses how often the net is evaluated, and how far to go."""

    search = "strong_wolfe"


class SharpnessAware(ByHand):
    """SAM (Foret et al. 2020, arXiv:2010.01412): the gradient is taken where the loss is largest nearby."""

    radius = 0.05

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = self.backward(X, y, global_batch_size)
        self.exchange()
        with torch.no_grad():
            before = [param.clone() for param in self.trained]
            norm = torch.stack([param.grad.norm() for param in self.trained]).norm() + 1e-12
            for param in self.trained:
                param.add_(param.grad * (self.radius / norm))
        self.backward(X, y, global_batch_size)
        self.exchange()
        with torch.no_grad():
            for param, value in zip(self.trained, before, strict=True):
                param.copy_(value)
        self.update()
        return loss


def orthogonal(matrix: Tensor) -> Tensor:
    """Bring all singular values near 1, by five iterations of Newton and Schulz's (Jordan et al. 2024, "Muon")."""
    near = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        square = near @ near.mT
        near = 3.4445 * near + (-4.775 * square + 2.0315 * square @ square) @ near
    return near


class MuonInTurns(ByHand):
    """Muon whose matrices are orthogonalised by one rank each and sent to the others; vectors take plain SGD."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.trained, lr, momentum=0.9)

    def update(self) -> None:
        for number, param in enumerate(param for param in self.trained if param.ndim == 2):
            owner = number % dist.get_world_size()
            if owner == dist.get_rank():
                param.grad = orthogonal(param.grad).contiguous()
            dist.broadcast(param.grad, src=owner)
        super().update()


class Adafactor(ByHand):
    """torch's Adafactor: second moments of rows and columns, and steps relative to a parameter's own size."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(self.trained, lr)


class Preconditioned(ByHand):
    """As Shampoo (Gupta et al. 2018, arXiv:1802.09568): a matrix's gradient between two inverse fourth roots.

    As usual, a matrix with a side of more than `longest` takes a plain step.
    """

    saves = (*ByHand.saves, "statistics")

    eps, longest = 1e-4, 64

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.statistics: dict[int, list[Tensor]] = {}
        return torch.optim.SGD(self.trained, lr)

    def update(self) -> None:
        for position, param in enumerate(self.trained):
            if param.ndim == 2 and max(param.shape) <= self.longest:
                grad = param.grad.to(torch.float64)
                sides = [self.eps * torch.eye(size, dtype=torch.float64) for size in grad.shape]
                left, right = self.statistics.setdefault(position, sides)
                left += grad @ grad.mT
                right += grad.mT @ grad
                param.grad = (self.root(left) @ grad @ self.root(right)).to(param.dtype)
        super().update()

    def root(self, square: Tensor) -> Tensor:
        """Return the inverse fourth root of a symmetric matrix, of NaN where it is not finite."""
        if not bool(square.isfinite().all()):
            return square * torch.nan
        values, vectors = torch.linalg.eigh(square)
        return vectors * values.clamp(min=self.eps) ** -0.25 @ vectors.mT


class RMSpropWithMomentum(ByHand):
    """torch's RMSprop with momentum, whose root of the second moment has no correction for its start."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(self.trained, lr, momentum=0.9)


class AMSGrad(ByHand):
    """AdamW that divides by the largest second moment so far."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.trained, lr, amsgrad=True, weight_decay=0.1)


class TwoOptimizers(ByHand):
    """Matrices by AdamW, vectors by SGD with momentum: two optimizers that step in turn."""

    saves = (*ByHand.saves, "second")

    def made(self, lr: float) -> torch.optim.Optimizer:
        vectors = [param for param in self.trained if param.ndim < 2]
        self.second = torch.optim.SGD(vectors, lr, momentum=0.9)
        return torch.optim.AdamW([param for param in self.trained if param.ndim >= 2] or [torch.zeros(1)], lr)

    def update(self) -> None:
        super().update()
        self.second.step()


class LARS(ByHand):
    """You et al. 2017 (arXiv:1708.03888): each parameter's step is as long as the parameter is."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.trained, lr, momentum=0.9)

    def update(self) -> None:
        with torch.no_grad():
            for param in self.trained:
                size, slope = param.norm(), param.grad.norm()
                param.grad.mul_(torch.where((size > 0) & (slope > 0), 0.1 * size / (slope + 1e-9), 1.0))
        super().update()


class LAMB(ByHand):
    """You et al. 2019 (arXiv:1904.00962): Adam's direction, as long as the parameter is."""

    def update(self) -> None:
        before = [param.detach().clone() for param in self.trained]
        super().update()
        with torch.no_grad():
            for param, value in zip(self.trained, before, strict=True):
                change = param - value
                size, length = value.norm(), change.norm()
                change *= torch.where((size > 0) & (length > 0), 0.1 * size / length, 1.0)
                param.copy_(value + change)


class Lookahead(ByHand):
    """Zhang et al. 2019 (arXiv:1907.08610): every second step the weights go half of the way back to slow ones."""

    saves = (*ByHand.saves, "steps", "slow")

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.steps, self.slow = 0, [param.detach().clone() for param in self.trained]
        return super().made(lr)

    def update(self) -> None:
        super().update()
        self.steps += 1
        if self.steps % 2 == 0:
            with torch.no_grad():
                for param, slow in zip(self.trained, self.slow, strict=True):
                    slow.lerp_(param, 0.5)
                    param.copy_(slow)
