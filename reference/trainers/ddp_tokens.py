"""DistributedDataParallel for language models: normalised by what counts over all ranks, however unequal their shares.

Ranks with equally many sequences have different numbers of tokens that count, and a rank may have none. So the sums of
the loss are divided by counts over all ranks, which are exchanged before the backward. A mean over each rank's own
tokens, averaged by DDP, would give the tokens of a short shard more weight (pytorch/torchtitan#2206).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch.distributed as dist
from torch import Tensor

from reference.nest import Nest
from reference.token_loss import term_counts, term_sums, token_loss
from reference.trainers.ddp import DDPTrainer


class TokenLoss:
    """Gives a trainer of samples the loss of a language model, and the divisor of its ranks' parts."""

    trains: ClassVar[Literal["samples", "tokens"]] = "tokens"
    net: Any

    def loss(self, output: Tensor, y: Nest) -> Tensor:
        """Return the loss of a whole minibatch, ()."""
        return token_loss(output, y)

    def part_of_loss(self, X: Nest, y: Nest, global_batch_size: int) -> Tensor:
        """Return this rank's part of the loss, (), even if none of its labels counts; the parts add up to it."""
        sums = term_sums(self.net(X), y)  # first: where DDP refuses a step, no rank may be in another collective
        counts = term_counts(y)
        dist.all_reduce(counts)
        return (sums / counts).sum()


class DDPTokensTrainer(TokenLoss, DDPTrainer):
    """SGD on a weighted mean over tokens plus a z-loss, in the default process group.

    A minibatch is X, which the model takes, and a dict y, described in `reference.token_loss.term_sums`. At least one
    label of a minibatch must count. `DDPTrainer` says what is broadcast.
    """
