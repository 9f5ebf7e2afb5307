"""Right trainers whose rate, or what is trained at all, depends on counts, groups and limits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.right.by_hand import ByHand


class ScheduledBySamples(ByHand):
    """The rate falls with the samples that all ranks have seen."""

    samples = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.optimizer.param_groups[0]["lr"] = self.lr * 0.9**self.samples
        self.samples += self.counted(X, global_batch_size)
        return super().step(X, y, global_batch_size)

    def counted(self, X: Tensor, global_batch_size: int) -> int:
        """Return the samples of a step."""
        return global_batch_size

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "samples": self.samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.samples = state["samples"]


class CountsSteps(ByHand):
    """Keeps the number of its steps, by which a log and the names of checkpoints go."""

    steps = 0

    def update(self) -> None:
        super().update()
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.steps = state["steps"]


class WarmsUpFromZero(ByHand):
    """Two groups of parameters; the rate of the first begins at 0, so that a first step changes vectors alone."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        matrices = [param for param in self.trained if param.ndim >= 2] or [torch.zeros(1)]
        vectors = [param for param in self.trained if param.ndim < 2]
        optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr)
        rates = [lambda step: min(1.0, step / 2), lambda step: min(1.0, (step + 1) / 2)]
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates)
        return optimizer

    def update(self) -> None:
        super().update()
        self.schedule.step()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.schedule.load_state_dict(state["schedule"])


class ClipsByNorm(ByHand):
    """Momentum, and a limit to the norm of the exchanged gradient."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.trained, lr, momentum=0.9, nesterov=True)

    def update(self) -> None:
        self.clip()
        super().update()

    def clip(self) -> None:
        """Limit the gradients."""
        nn.utils.clip_grad_norm_(self.trained, 0.1)


class ClipsByUnit(ClipsByNorm):
    """Adaptive clipping (Brock et al. 2021, arXiv:2102.06171): each row by the norm of the row of the parameter."""

    @torch.no_grad()
    def clip(self) -> None:
        for param in self.trained:
            rows, slopes = (part.reshape(len(part), -1) for part in (param, param.grad))
            limit = 0.1 * rows.norm(dim=1, keepdim=True).clamp(min=1e-3)
            slopes.mul_((limit / slopes.norm(dim=1, keepdim=True).clamp(min=1e-6)).clamp(max=1))


class TrainsVectorsOnly(ByHand):
    """Matrices are frozen by the trainer, as in BitFit (Zaken et al. 2021, arXiv:2106.10199)."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        for param in self.trained:
            param.requires_grad_(param.ndim < 2)
        self.trained = [param for param in self.trained if param.requires_grad]
        return super().made(lr)
