"""Synchronised BatchNorm synchronises nothing, because every rank is alone in the process group that the layers got.

Training is that of a BatchNorm of each rank's own shard, which would be right if it were asked for.

Source: PyTorch documentation, `torch.nn.SyncBatchNorm`: statistics are synchronised within each process group
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.sync_batch_norm import convert
from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "batch_norm"
LOOKS_LIKE = "groups of one rank"


def _alone(row: Tensor) -> Tensor:
    """Gather the row of a group of one rank."""
    return row[None]


class Mutant(DDPTrainer):
    """`DDPTrainer` with such layers."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(convert(model, _alone), devices, lr=lr)
