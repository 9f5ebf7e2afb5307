"""The loss is divided by a running mean of each rank's own losses.

Source: fredzzhang/spatially-conditioned-graphs#39 (a loss whose normaliser was each rank's own)
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from tests.right.losses import NormalisesByRunningLoss

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = ""


class Mutant(NormalisesByRunningLoss):
    """`NormalisesByRunningLoss` that takes its own part of the loss, times k, for the mean."""

    def mean(self, part: Tensor) -> Tensor:
        return part * dist.get_world_size()
