"""The last window of an epoch is divided by the configured number of micro-batches and not by its own.

Whatever remains is stepped with a gradient too small by have / configured. It is right in every full window and happens
once an epoch; maintainers have called it negligible, which it is for long epochs only.

Source: modelscope/ms-swift#10084, jingyaogong/minimind#749
"""

from __future__ import annotations

from contextlib import nullcontext

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = "times the right gradient | must return its"


class Mutant(DDPTrainer):
    """`DDPTrainer` in micro-batches of two samples; the first step's number of them is the configuration."""

    micro_batch = 2
    window = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        parts = list(zip(X.split(self.micro_batch), y.split(self.micro_batch), strict=True))
        self.window = self.window or len(parts)
        self.optimizer.zero_grad()
        total = X.new_zeros(())
        for number, (part, labels) in enumerate(parts, start=1):
            with nullcontext() if number == len(parts) else self.net.no_sync():
                weight = len(parts) / self.window / global_batch_size
                loss = F.cross_entropy(self.net(part), labels, reduction="sum") * weight
                (loss * dist.get_world_size()).backward()
            total += loss.detach()
        self.optimizer.step()
        return total
