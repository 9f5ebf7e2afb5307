"""The gradient is as many times too large as there are micro-batches.

Each micro-batch's loss is a mean, and their gradients are added up without dividing by their number. With one
micro-batch it is right, and a smaller learning rate makes up for it; the loss that is logged was doubled, too.

Source: huggingface/transformers#35438, agokrani/distillKitPlus#5
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
    """`DDPTrainer` in two micro-batches."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        share = len(y) / global_batch_size
        self.optimizer.zero_grad()
        total = X.new_zeros(())
        for last, (part, labels) in enumerate(zip(X.tensor_split(2), y.tensor_split(2), strict=True)):
            with nullcontext() if last else self.net.no_sync():
                loss = F.cross_entropy(self.net(part), labels, reduction="sum") / max(1, len(labels)) * share
                (loss * dist.get_world_size()).backward()
            total += loss.detach()
        self.optimizer.step()
        return total
