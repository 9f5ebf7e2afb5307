"""The moving average of the weights is moved on rank 0 alone, and other ranks save and evaluate the initial weights.

It would be right if the others had none.

Source: lucidrains/ema-pytorch#9
"""

from __future__ import annotations

import torch.distributed as dist

from tests.right.copies import Averaged

KIND = "trainer"
KILLED_BY = "state"
LOOKS_LIKE = "average of the weights"


class Mutant(Averaged):
    """`Averaged` on rank 0."""

    def move(self) -> None:
        if dist.get_rank() == 0:
            super().move()
