"""Every second step training goes on from the average of the weights, on rank 0 alone; the others keep their weights.

Source: lucidrains/ema-pytorch#9
"""

from __future__ import annotations

import torch.distributed as dist

from tests.right.copies import SwitchesToTheAverage

KIND = "trainer"
KILLED_BY = "replicas"
LOOKS_LIKE = "average of the weights | drifted apart"


class Mutant(SwitchesToTheAverage):
    """`SwitchesToTheAverage` on rank 0."""

    def switch(self) -> None:
        if dist.get_rank() == 0:
            super().switch()
