"""Right trainers that also have the same update written plainly, with which k devices are compared."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.right.by_hand import ByHand
from tests.right.exchanges import InAsynchronousHooks
from tests.right.losses import WeighsByLosses
from tests.right.schedules import ClipsByNorm


class ClipsPlainly(ClipsByNorm):
    """Clipping and Nesterov's momentum; the plain update computes the norm by itself."""

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take the step with the whole minibatch at once."""
        loss = _whole(self.trained, F.cross_entropy(self.net(X), y))
        norm = torch.cat([param.grad.flatten() for param in self.trained]).norm()
        for param in self.trained:
            param.grad *= min(1.0, 0.1 / (float(norm) + 1e-6))
        self.optimizer.step()
        return loss


class WeighsPlainly(WeighsByLosses):
    """Samples weighed by their losses; the plain update has the weights of the whole minibatch at once."""

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take the step with the whole minibatch at once."""
        losses = F.cross_entropy(self.net(X), y, reduction="none")
        weights = (1 + losses.detach()) / (1 + losses.detach()).sum()
        loss = _whole(self.trained, (weights * losses).sum())
        self.optimizer.step()
        return loss


class HooksPlainly(InAsynchronousHooks):
    """Exchange by asynchronous hooks; the plain update has none, and reports no loss."""

    hooked = True

    def arrived(self, position: int) -> None:
        if self.hooked:
            super().arrived(position)

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None:
        """Take the step with the whole minibatch at once."""
        self.hooked = False
        _whole(self.trained, F.cross_entropy(self.net(X), y))
        self.optimizer.step()
        self.hooked = True


class AccumulatesPlainly(ByHand):
    """Three micro-batches of any sizes; the plain update has one."""

    def backward(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        for param in self.trained:
            param.grad = torch.zeros_like(param)
        total = X.new_zeros(())
        for part, labels in zip(X.tensor_split(3), y.tensor_split(3), strict=True):
            loss = self.part_of_loss(part, labels, global_batch_size)
            loss.backward()
            total += loss.detach()
        return total

    def reference_step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take the step with the whole minibatch at once."""
        loss = _whole(self.trained, F.cross_entropy(self.net(X), y))
        self.optimizer.step()
        return loss


def _whole(trained: list[nn.Parameter], loss: Tensor) -> Tensor:
    """Make all gradients, of zeros where a parameter is unused, and return the loss."""
    for param in trained:
        param.grad = torch.zeros_like(param)
    loss.backward()
    return loss.detach()
