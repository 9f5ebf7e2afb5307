"""Only the last micro-batch of an accumulation has a gradient, because each pass clears those before.

``zero_grad`` stands inside the inner loop, or is called on the model where a wrapper of the optimiser would have known
better. All ranks agree, the loss goes down, and each step wastes all passes but one. With one pass it is right.

Source: bytetriper/RAE#67, tatsu-lab/alpaca_farm#57
"""

from __future__ import annotations

from contextlib import nullcontext

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = ""


class Mutant(DDPTrainer):
    """`DDPTrainer` in two micro-batches."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        total = X.new_zeros(())
        for last, (part, labels) in enumerate(zip(X.tensor_split(2), y.tensor_split(2), strict=True)):
            with nullcontext() if last else self.net.no_sync():
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.net(part), labels, reduction="sum") / global_batch_size
                (loss * dist.get_world_size()).backward()
            total += loss.detach()
        self.optimizer.step()
        return total
