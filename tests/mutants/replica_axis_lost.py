"""With hybrid sharding, gradients are summed over the group of the shards and never over the replicas.

Two replicas of two shards each train on half of the minibatch and drift apart. On fewer ranks there is one replica, and
all is right; within a replica the ranks agree at any size.

Source: verl-project/verl#7493, pytorch/pytorch#154888, NVIDIA-NeMo/Automodel#3135
"""

from __future__ import annotations

import torch.distributed as dist

from tests.support.step_trainers import Hybrid

KIND = "trainer"
KILLED_BY = "replicas"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(Hybrid):
    """`Hybrid` with one of its two exchanges."""

    def exchange(self) -> None:
        for grad in self.grads:
            dist.all_reduce(grad, group=self.shard_group)
