"""Trainers whose steps draw random numbers: right ones, and ones that are wrong in one part.

Not covered: dropout in the model, which the check `dropout` has.
"""

from __future__ import annotations

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.loss import term_counts, term_sums, token_loss
from reference.nest import Nest
from reference.trainers.data_parallel import DataParallelTrainer
from reference.trainers.ddp import DDPTokensTrainer, DDPTrainer
from tests.support import step_trainers

NoisyLoss = step_trainers.NoisyLoss


class NoisyMeanOfMeans(step_trainers.NoisyLoss):
    """Wrong where shards are uneven: each rank's mean, averaged."""

    def backward(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Weigh every rank alike."""
        return super().backward(X, y, len(y) * dist.get_world_size())


class OwnLoss(DDPTrainer):
    """Plain SGD on a loss that leaves out about half of the samples."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample."""
        kept = torch.rand(len(y)) < 0.5
        return F.cross_entropy(output, y, reduction="none") * kept

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return self.loss(self.net(X), y).sum() / global_batch_size


class NotMeanCrossEntropy(OwnLoss):
    """Wrong under oracle "sgd": it has no loss of its own to be compared with."""

    loss = None  # type: ignore[assignment]

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return OwnLoss.loss(self, self.net(X), y).sum() / global_batch_size


class OfNumPy(DDPTrainer):
    """Weighs a minibatch by a number that every rank draws from NumPy, as mixup does."""

    oracle = "self"

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return float(numpy.random.beta(0.5, 0.5)) * super().part_of_loss(X, y, global_batch_size)


class MixesSamples(DDPTrainer):
    """Adds to each sample another one of its rank; on one device the partners are others."""

    oracle = "self"

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return super().part_of_loss(X + X[torch.randperm(len(X))], y, global_batch_size)


class NoisyWeights(DDPTrainer):
    """Wrong: every rank adds noise of its own to its weights."""

    oracle = "self"

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = super().step(X, y, global_batch_size)
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter += torch.randn(parameter.shape)
        return loss


class OneProcess(DataParallelTrainer):
    """Adds noise to the whole minibatch before it is split."""

    oracle = "self"

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return super().step(X + torch.randn_like(X), y, global_batch_size)


class WeighsTexts(DDPTokensTrainer):
    """Weighs every text by a random number, in its divisor too."""

    def loss(self, output: Tensor, y: Nest) -> Tensor:
        return token_loss(output, self.weighed(y))

    def part_of_loss(self, X: Nest, y: Nest, global_batch_size: int) -> Tensor:
        sums = term_sums(self.net(X), y := self.weighed(y))
        return (sums / self.counts(y)).sum()

    def counts(self, y: Nest) -> Tensor:
        """Return what the terms of the whole minibatch are divided by."""
        counts = term_counts(y)
        dist.all_reduce(counts)
        return counts

    @staticmethod
    def weighed(y: Nest) -> Nest:
        """Return other weights."""
        return {**y, "weights": y["weights"] * torch.rand(len(y["weights"]), dtype=torch.float64)}


class WeighsTextsByRank(WeighsTexts):
    """Wrong: each rank divides by what counts on it."""

    def counts(self, y: Nest) -> Tensor:
        return term_counts(y) * dist.get_world_size()
