"""No pass of the accumulation is synchronised, the last one included, and the ranks train alone.

Off by one: passes are counted from 0 and the last is looked for at their number. Under ``no_sync`` gradients stay
local until a pass outside of it. The loop is as fast as one hoped. One device is right.

Source: pytorch/pytorch#53443, pytorch/pytorch#187732 (the same outcome inside of DDP)
"""

from __future__ import annotations

from contextlib import nullcontext

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "replicas"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(DDPTrainer):
    """`DDPTrainer` in two micro-batches."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        passes = list(zip(X.tensor_split(2), y.tensor_split(2), strict=True))
        self.optimizer.zero_grad()
        total = X.new_zeros(())
        for number, (part, labels) in enumerate(passes):
            with self.net.no_sync() if number < len(passes) else nullcontext():
                loss = F.cross_entropy(self.net(part), labels, reduction="sum") / global_batch_size
                (loss * dist.get_world_size()).backward()
            total += loss.detach()
        self.optimizer.step()
        return total
