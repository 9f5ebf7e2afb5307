"""Gradients are never cleared, and every step adds those of all steps before.

``zero_grad`` was lost when the loop was reordered. The first step is right; after that it looks like momentum 1, which
trains small nets quickly. In a DDP loop the old part is averaged again, which leaves it as it is.

Source: tenstorrent/tt-blacksmith#711, IDEA-Research/DAB-DETR#58, pytorch/pytorch#47175
"""

from __future__ import annotations

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = "never cleared | not cleared"


class Mutant(DDPTrainer):
    """`DDPTrainer` without ``zero_grad``."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size
        (loss * dist.get_world_size()).backward()
        self.optimizer.step()
        return loss.detach()
