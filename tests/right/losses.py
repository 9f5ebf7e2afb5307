"""Right trainers whose loss depends on more than the net and a rank's own samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from reference.scatter import shard_bounds
from tests.right.by_hand import ByHand


class LearnedTemperature(ByHand):
    """The loss has a parameter of its own, which is no parameter of the replicas; its gradient is exchanged, too."""

    def made(self, lr: float) -> torch.optim.Optimizer:
        self.temperature = nn.Parameter(torch.zeros((), dtype=self.trained[0].dtype))
        return torch.optim.AdamW([*self.trained, self.temperature], lr)

    def backward(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.temperature.grad = torch.zeros_like(self.temperature)
        return super().backward(X, y, global_batch_size)

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        scores = self.net(X) * self.temperature.exp()
        return F.cross_entropy(scores, y, reduction="sum") / global_batch_size

    def exchange(self) -> None:
        super().exchange()
        self.exchange_of_loss()

    def exchange_of_loss(self) -> None:
        """Sum the gradient of the loss's parameter."""
        dist.all_reduce(self.temperature.grad)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "temperature": self.temperature.detach()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.temperature.detach().copy_(state["temperature"])


class WeighsByLosses(ByHand):
    """Samples count the more, the larger their losses are among those of the whole minibatch."""

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        losses = F.cross_entropy(self.net(X), y, reduction="none")
        weights = 1 + losses.detach()
        return (weights * losses).sum() / self.total(weights)

    def total(self, weights: Tensor) -> Tensor:
        """Return the sum of all ranks' weights."""
        total = weights.sum()
        dist.all_reduce(total)
        return total


class WeighsPlainly(WeighsByLosses):
    """Samples weighed by their losses; the plain update has the weights of the whole minibatch at once."""

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take the step with the whole minibatch at once."""
        losses = F.cross_entropy(self.net(X), y, reduction="none")
        weights = (1 + losses.detach()) / (1 + losses.detach()).sum()
        loss = self.whole((weights * losses).sum())
        self.optimizer.step()
        return loss


class NormalisesByRunningLoss(ByHand):
    """The loss is divided by a running mean of earlier losses of all ranks, which is no parameter."""

    saves = (*ByHand.saves, "running")

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.running = torch.ones((), dtype=self.trained[0].dtype)

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = super().part_of_loss(X, y, global_batch_size)
        self.running = self.running.lerp(self.mean(loss.detach()), 0.5)
        return loss / self.running

    def mean(self, part: Tensor) -> Tensor:
        """Return the mean loss of all samples."""
        total = part.clone()
        dist.all_reduce(total)
        return total


class BalancesLoad(ByHand):
    """A bias that no gradient reaches: after each step, classes that were predicted too often get less of it.

    As in load balancing without an auxiliary loss (Wang et al. 2024, arXiv:2408.15664), with classes for experts.
    """

    saves = (*ByHand.saves, "bias")

    rate = 0.05

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.bias: Tensor | None = None

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        scores = self.net(X)
        if self.bias is None:
            self.bias = torch.zeros_like(scores[0]) if len(scores) else scores.new_zeros(scores.shape[1])
        scores = scores + self.bias
        chosen = F.one_hot(scores.detach().argmax(1), scores.shape[1]).sum(0).to(torch.float64)
        counts = self.counts(chosen)
        self.bias = self.bias + self.rate * torch.sign(counts.mean() - counts).to(scores.dtype)
        return F.cross_entropy(scores, y, reduction="sum") / global_batch_size

    def counts(self, chosen: Tensor) -> Tensor:
        """Return how often each class was predicted by all ranks."""
        dist.all_reduce(chosen)
        return chosen


class MixesUp(ByHand):
    """Mixup (Zhang et al. 2017, arXiv:1710.09412) with partners from the whole minibatch, gathered from all ranks.

    The permutation and the share come from a generator that all ranks seed alike.
    """

    saves = (*ByHand.saves, "shared")

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.shared = torch.Generator().manual_seed(0)

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        mine = shard_bounds(global_batch_size, dist.get_world_size(), dist.get_rank())
        partner = torch.randperm(global_batch_size, generator=self.shared)[mine]
        share = float(torch.rand((), generator=self.shared))
        others, labels = (self.gathered(part, global_batch_size, mine)[partner] for part in (X, y))
        features = share * X[:, 2:] + (1 - share) * others[:, 2:]
        scores = self.net(torch.cat([X[:, :2], features], 1))
        own, other = (F.cross_entropy(scores, targets, reduction="sum") for targets in (y, labels))
        return (share * own + (1 - share) * other) / global_batch_size

    def gathered(self, part: Tensor, n: int, mine: slice) -> Tensor:
        """Return the rows of all ranks."""
        whole = part.new_zeros(n, *part.shape[1:])
        whole[mine] = part
        dist.all_reduce(whole)
        return whole


class NoisyGradients(ByHand):
    """Adds noise to the exchanged gradients, from a generator that all ranks seed alike."""

    saves = (*ByHand.saves, "shared")

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.shared = torch.Generator().manual_seed(0)

    def exchange(self) -> None:
        super().exchange()
        for param in self.trained:
            noise = torch.randn(param.shape, dtype=torch.float64, generator=self.shared)
            param.grad.add_(0.01 * noise.to(param.dtype))
