"""Nothing is exchanged, because the forward goes through ``.module`` and past the wrapper.

DDP's hooks are armed in its own forward. Losses that need an attribute of the model reach for ``net.module``, and each
rank trains alone on its part of the data; only rank 0's weights are saved. With one device, or the same data on every
rank, it is right.

Source: jingyaogong/minimind#853, OpenTSLM/OpenTSLM#49
"""

from __future__ import annotations

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "evaluation"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(DDPTrainer):
    """`DDPTrainer` with an unwrapped forward."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = F.cross_entropy(self.net.module(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        (loss * dist.get_world_size()).backward()
        self.optimizer.step()
        return loss.detach()
