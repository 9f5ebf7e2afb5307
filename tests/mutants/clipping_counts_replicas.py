"""The norm that is clipped by counts the gradient once for every replica.

The squares are summed over all ranks and not over the shards alone, so the norm is too large by the root of the number
of replicas, and steps are clipped too much. With one replica it is right.

Source: ByteDance-Seed/VeOmni#862
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from tests.support.step_trainers import Hybrid

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "clipp | times the right gradient"


class Mutant(Hybrid):
    """`Hybrid` that sums the squares over the whole mesh."""

    def norm(self, part: Tensor) -> Tensor:
        total = part.square().sum()
        dist.all_reduce(total)
        return total.sqrt()
