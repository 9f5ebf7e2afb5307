"""DistributedDataParallel for language models: normalised by what counts over all ranks, however unequal their shares.

Ranks with equally many sequences have different numbers of tokens that count, and a rank may have none. So the sums of
the loss are divided by counts over all ranks, which are exchanged before the backward. A mean over each rank's own
tokens, averaged by DDP, would give the tokens of a short shard more weight (pytorch/torchtitan#2206).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.nest import Nest
from reference.trainers.ddp import DDPTrainer

IGNORED = -100  # torch's default in cross_entropy
Z_LOSS = 0.01


def term_sums(scores: Tensor, y: Nest) -> Tensor:
    """Return the sums of the loss's two terms over the labels that count, (2,), differentiable.

    The first is the cross-entropy of each label, times its sample's weight. The second is the squared log of the
    softmax's normaliser, which keeps it near 1 (z-loss; Chowdhery et al. 2022, arXiv:2204.02311, section 5).

    Args:
        scores: (n, positions, vocabulary).
        y: "labels" (n, positions), int64, `IGNORED` where none counts, and "weights" (n,).
    """
    labels = y["labels"]
    entropy = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    weighted = entropy.view_as(labels) * y["weights"][:, None]
    normaliser = scores.logsumexp(-1).square() * (labels != IGNORED)
    return torch.stack([weighted.sum(), Z_LOSS * normaliser.sum()])


def term_counts(y: Nest) -> Tensor:
    """Return what each term is divided by, (2,): the weights of the labels that count, and their number."""
    counting = (y["labels"] != IGNORED).to(y["weights"].dtype)
    return torch.stack([(counting * y["weights"][:, None]).sum(), counting.sum()])


class DDPTokensTrainer(DDPTrainer):
    """SGD on a weighted mean over tokens plus a z-loss, in the default process group.

    A minibatch is two dicts: X is what the model takes, y is described in `term_sums`. At least one label of a
    minibatch must count. `DDPTrainer` says what is broadcast.
    """

    trains: ClassVar[Literal["samples", "tokens"]] = "tokens"

    def loss(self, output: Tensor, y: Nest) -> Tensor:
        """Return the loss of a whole minibatch, ()."""
        return (term_sums(output, y) / term_counts(y)).sum()

    def step(self, X: Nest, y: Nest, global_batch_size: int) -> Tensor:
        """Take part in one update with this rank's shard, even if none of its labels counts; see `Trainer.step`."""
        counts = term_counts(y)
        dist.all_reduce(counts)
        loss = (term_sums(self.net(X), y) / counts).sum()
        self.optimizer.zero_grad()
        torch.autograd.backward(loss * dist.get_world_size())  # DDP takes the mean over the ranks, and this is a sum
        self.optimizer.step()
        return loss.detach()
