"""The moving average of the weights is moved once for every rank in a step, and forgets k times as fast.

Source: SWivid/F5-TTS#631 (an average that is moved in every micro-batch), huggingface/diffusers#64 (the step's number
was passed as "a safeguard against multiple updates per step during distributed training")
"""

from __future__ import annotations

import torch.distributed as dist

from tests.right.copies import Averaged

KIND = "trainer"
KILLED_BY = "state"
LOOKS_LIKE = "average of the weights"


class Mutant(Averaged):
    """`Averaged` that moves k times."""

    def move(self) -> None:
        for _ in range(dist.get_world_size()):
            super().move()
