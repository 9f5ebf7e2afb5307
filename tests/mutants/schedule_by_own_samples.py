"""The schedule of the learning rate follows the samples that a rank has seen itself, times the number of ranks.

Ranks with smaller shards have a larger rate, and the replicas drift apart. With equal shards nothing is wrong.

Source: karpathy/nanochat#857, rwth-i6/returnn#1493
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from tests.right.by_hand import ScheduledBySamples

KIND = "trainer"
KILLED_BY = "replicas"
LOOKS_LIKE = "schedule | drifted apart"


class Mutant(ScheduledBySamples):
    """`ScheduledBySamples` that counts its own."""

    def counted(self, X: Tensor, global_batch_size: int) -> int:
        return len(X) * dist.get_world_size()
