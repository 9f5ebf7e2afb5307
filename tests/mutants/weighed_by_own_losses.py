"""Samples count by their losses among those of their own rank, and not of the whole minibatch.

Source: fredzzhang/spatially-conditioned-graphs#39 (a loss whose normaliser was each rank's own)
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from tests.right.losses import WeighsByLosses

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "mean of the ranks' own means"


class Mutant(WeighsByLosses):
    """`WeighsByLosses` with the total of each rank for a k-th of all."""

    def total(self, weights: Tensor) -> Tensor:
        return weights.sum().clamp(min=1) * dist.get_world_size()
