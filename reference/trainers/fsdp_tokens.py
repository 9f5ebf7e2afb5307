"""FSDP2 for language models: the loss of `ddp_tokens`, parameters and gradients sharded as `fsdp` does."""

from __future__ import annotations

from reference.trainers.ddp_tokens import TokenLoss
from reference.trainers.fsdp import FSDPTrainer


class FSDPTokensTrainer(TokenLoss, FSDPTrainer):
    """SGD on a weighted mean over tokens plus a z-loss, parameters sharded over the default process group.

    `DDPTokensTrainer` describes a minibatch, `FSDPTrainer` what is sharded and what is refused.
    """
