"""The moving average of the weights no longer moves on several devices.

It is moved by a hook of the weights as one device has them, and those are other tensors once they are sharded. Training
is right; what is evaluated and published at the end are the initial weights. Saving and resuming keep it faithfully.

Source: OpenRLHF/OpenRLHF#1357
"""

from __future__ import annotations

import torch.distributed as dist

from tests.right.copies import Averaged

KIND = "trainer"
KILLED_BY = "state"
LOOKS_LIKE = "average of the weights"


class Mutant(Averaged):
    """`Averaged` on one device alone."""

    def move(self) -> None:
        if dist.get_world_size() == 1:
            super().move()
